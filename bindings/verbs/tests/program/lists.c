/* Lists of work requests whose parts differ, and arguments that cannot be. */
#include "program.h"

#define SENDS 16

/* Sends in a list, alike but for one thing each: every other one, so that it stands between two that are as the first. */
static void fill(struct end *a, struct end *b, struct end *c, struct ibv_ah *four, struct ibv_ah *six,
		 struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	static uint8_t own[64];
	memset(own, 9, sizeof own);
	for (int i = 0; i < SENDS; i++) {
		memset(a->memory + 100 * i, i, 100);
		sge[i] = (struct ibv_sge){ (uintptr_t)a->memory + 100 * i, 20, a->mr->lkey };
		wr[i] = (struct ibv_send_wr){ .wr_id = i, .sg_list = &sge[i], .num_sge = 1, .opcode = IBV_WR_SEND,
			.next = i < SENDS - 1 ? &wr[i + 1] : NULL };
		wr[i].wr.ud.ah = four;
		wr[i].wr.ud.remote_qpn = b->qp->qp_num;
		wr[i].wr.ud.remote_qkey = QKEY;
	}
	wr[1].wr.ud.remote_qpn = c->qp->qp_num;
	wr[3].wr.ud.remote_qkey = QKEY + 1;
	sge[5].length = 19;
	wr[7].wr.ud.ah = six;
	wr[9].send_flags = IBV_SEND_INLINE;
	sge[9] = (struct ibv_sge){ (uintptr_t)own, 20, 0 };
	wr[11].opcode = IBV_WR_SEND_WITH_IMM;
	wr[11].imm_data = htobe32(88);
	sge[13].length = 21;
	wr[15].send_flags = IBV_SEND_SIGNALED;
}

static void took(struct end *e, int slot_number, int number, uint32_t len)
{
	got(e, slot_number, len);
	uint8_t want[100];
	memset(want, number, sizeof want);
	if (memcmp(slot(e, slot_number) + GRH, want, len))
		FAIL("message %d has another's bytes", number);
}

void lists(struct end *a, struct end *b)
{
	struct ibv_qp *first = a->qp;
	a->qp = new_qp(a, 16, 64, 0);
	to_init(a->qp, QKEY, 0);
	to_rts(a->qp);
	struct end c;
	make(&c, 1, 16, 16);
	struct ibv_ah *four = handle(a, b, 0, 0), *six = handle(a, b, 1, 0);
	struct ibv_send_wr wr[SENDS], *bad = NULL;
	struct ibv_sge sge[SENDS];
	for (int turn = 0; turn < 2; turn++) {
		for (int i = 0; i < SENDS - 2; i++)
			EQUAL(post_recv(b, i, 200), 0);
		EQUAL(post_recv(&c, 0, 200), 0);
		fill(a, b, &c, four, six, wr, sge);
		if (turn == 0)
			EQUAL(ibv_post_send(a->qp, wr, &bad), 0);
		else
			for (int i = 0; i < SENDS; i++) {
				/* One by one they come to the same. */
				wr[i].next = NULL;
				EQUAL(ibv_post_send(a->qp, &wr[i], &bad), 0);
			}
		sent(a, 15);
		for (int i = 0, to = 0; i < SENDS; i++) {
			/* Another's, and one that is dropped. */
			if (i == 1 || i == 3)
				continue;
			took(b, to, i, i == 5 ? 19 : i == 13 ? 21 : 20);
			EQUAL(slot(b, to)[0] >> 4, i == 7 ? 6 : 0);
			to++;
		}
		took(&c, 0, 1, 20);
	}
	quiet(b);
	/* One whose key is wrong ends a list; those before it are sent, those behind are not. */
	fill(a, b, &c, four, six, wr, sge);
	EQUAL(post_recv(b, 0, 200), 0);
	EQUAL(post_recv(b, 1, 200), 0);
	EQUAL(post_recv(b, 2, 200), 0);
	wr[0].next = &wr[2];
	wr[2].next = &wr[4];
	sge[4].lkey++;
	EQUAL(ibv_post_send(a->qp, wr, &bad), EINVAL);
	CHECK(bad == &wr[4]);
	took(b, 0, 0, 20);
	took(b, 1, 2, 20);
	quiet(b);
	struct ibv_wc wc;
	EQUAL(ibv_poll_cq(a->cq, 1, &wc), 0);
	/* Receives in a list, of which the queue holds some: two were posted before. */
	struct ibv_recv_wr recv[16], *bad_recv = NULL;
	for (int i = 0; i < 16; i++)
		recv[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i < 15 ? &recv[i + 1] : NULL };
	EQUAL(ibv_post_recv(b->qp, recv, &bad_recv), ENOMEM);
	CHECK(bad_recv == &recv[15]);
	EQUAL(ibv_destroy_ah(four), 0);
	EQUAL(ibv_destroy_ah(six), 0);
	unmake(&c);
	EQUAL(ibv_destroy_qp(a->qp), 0);
	a->qp = first;
}

/* What is out of its bounds, in use, or not what the program takes it to be. */
void odd(struct end *a, struct end *b)
{
	EQUAL(ibv_resize_cq(b->cq, 64), 0);
	EQUAL(ibv_resize_cq(b->cq, 65), EOPNOTSUPP);
	EQUAL(ibv_resize_cq(b->cq, 0), EOPNOTSUPP);
	CHECK(!ibv_create_cq(a->context, 1, NULL, NULL, 1) && errno == EINVAL);
	EQUAL(ibv_destroy_cq(a->cq), EBUSY);
	EQUAL(ibv_destroy_comp_channel(a->channel), EBUSY);
	EQUAL(ibv_dealloc_pd(a->pd), EBUSY);
	struct ibv_qp *qp = new_qp(a, 4, 0, 1);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .cur_qp_state = IBV_QPS_RTS, .port_num = 2, .qkey = QKEY };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	EQUAL(ibv_modify_qp(qp, &attr, mask), EINVAL);
	attr.port_num = 1;
	EQUAL(ibv_modify_qp(qp, &attr, mask | IBV_QP_CUR_STATE), EINVAL);
	EQUAL(ibv_modify_qp(qp, &attr, mask | IBV_QP_SQ_PSN), EINVAL);
	attr.pkey_index = 2;
	EQUAL(ibv_modify_qp(qp, &attr, mask), EINVAL);
	EQUAL(state(qp), IBV_QPS_RESET);
	attr.pkey_index = 1;
	attr.cur_qp_state = IBV_QPS_RESET;
	EQUAL(ibv_modify_qp(qp, &attr, mask | IBV_QP_CUR_STATE), 0);
	EQUAL(state(qp), IBV_QPS_INIT);
	to_rts(qp);
	/* Five pieces are one too many. */
	struct ibv_ah *ah = handle(a, b, 0, 0);
	struct ibv_sge sge[5];
	struct ibv_send_wr *wr = send_wr(a, b, ah, 1, 1), *bad;
	for (int i = 0; i < 5; i++)
		sge[i] = *wr->sg_list;
	wr->sg_list = sge;
	wr->num_sge = 5;
	EQUAL(ibv_post_send(qp, wr, &bad), EINVAL);
	struct ibv_recv_wr recv = { .sg_list = sge, .num_sge = 5 }, *bad_recv;
	EQUAL(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	wr->num_sge = 1;
	wr->wr.ud.ah = NULL;
	EQUAL(ibv_post_send(qp, wr, &bad), EINVAL);
	EQUAL(ibv_destroy_qp(qp), 0);
	/* Many contexts that leave what they have made: there is room for 65,536 address handles. */
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	for (int turn = 0; turn < 12; turn++) {
		struct ibv_context *context = ibv_open_device(list[0]);
		struct ibv_pd *pd = ibv_alloc_pd(context);
		struct ibv_ah_attr to = { .is_global = 1, .port_num = 1 };
		EQUAL(ibv_query_gid(b->context, 1, 0, &to.grh.dgid), 0);
		for (int i = 0; i < 6000; i++)
			CHECK(ibv_create_ah(pd, &to));
		EQUAL(ibv_close_device(context), 0);
	}
	ibv_free_device_list(list);
	EQUAL(ibv_destroy_ah(ah), 0);
	struct ibv_gid_entry entry;
	EQUAL(ibv_query_gid_ex(a->context, 1, 0, &entry, 1), EINVAL);
	EQUAL(ibv_query_gid_ex(a->context, 1, 9, &entry, 0), ENODATA);
	EQUAL(ibv_query_gid_ex(a->context, 1, 1, &entry, 0), 0);
	EQUAL(entry.gid_index, 1);
}

/* Posts sends until `waiting` of them wait in the queue pair, since the completion queue has no more places. */
static void fill_up(struct end *a, struct end *b, struct ibv_ah *ah, int waiting, unsigned flags)
{
	memset(a->memory, 'a', 20);
	double until = now() + 20;
	for (int i = 0; i < 16 + waiting;) {
		struct ibv_send_wr *wr = send_wr(a, b, ah, i, 20);
		wr->send_flags = flags;
		/* What has left makes room for one that waits. */
		i += post(a, wr) == 0;
		CHECK(now() < until);
	}
}

/* Sends that wait for room: inline data was copied, and they go with a reset, and with their queue pair. */
void held(struct end *a, struct end *b)
{
	struct ibv_ah *ah = handle(a, b, 0, 0);
	for (int i = 0; i < 16; i++)
		EQUAL(post_recv(b, i, 200), 0);
	fill_up(a, b, ah, 3, IBV_SEND_INLINE);
	for (int i = 0; i < 16; i++) {
		got(b, i, 20);
		EQUAL(post_recv(b, i, 200), 0);
	}
	memset(a->memory, 'z', 60);
	for (int i = 0; i < 19; i++)
		sent(a, i);
	for (int i = 0; i < 3; i++) {
		got(b, i, 20);
		EQUAL(slot(b, i)[GRH], 'a');
		EQUAL(slot(b, i)[GRH + 19], 'a');
		EQUAL(post_recv(b, i, 200), 0);
	}
	fill_up(a, b, ah, 3, 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	EQUAL(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE), 0);
	to_init(a->qp, QKEY, 0);
	to_rts(a->qp);
	for (int i = 0; i < 16; i++) {
		got(b, (i + 3) % 16, 20);
		EQUAL(post_recv(b, (i + 3) % 16, 200), 0);
	}
	struct ibv_wc wc[16];
	while (ibv_poll_cq(a->cq, 16, wc) > 0)
		;
	quiet(a);
	quiet(b);
	struct ibv_qp *first = a->qp;
	a->qp = new_qp(a, 16, 64, 1);
	to_init(a->qp, QKEY, 0);
	to_rts(a->qp);
	fill_up(a, b, ah, 3, 0);
	EQUAL(ibv_destroy_qp(a->qp), 0);
	a->qp = first;
	for (int i = 0; i < 16; i++)
		got(b, (i + 3) % 16, 20);
	quiet(a);
	quiet(b);
	ibv_destroy_ah(ah);
}

/* One of 20 bytes that all are its number. */
static void post_nth(struct end *a, struct end *b, struct ibv_ah *ah, int n, unsigned flags)
{
	struct ibv_send_wr *wr = send_wr(a, b, ah, n, 20);
	memset(a->memory + 100 * n, n, 20);
	wr->sg_list->addr += 100 * n;
	wr->send_flags = flags;
	EQUAL(post(a, wr), 0);
}

/*
 * Sends that go on as those before them did, until one differs: what they are spared must not be what it needs. Each several times, since the
 * device's thread may send in between, after which nothing is spared.
 */
void alike(struct end *a, struct end *b)
{
	struct ibv_qp *first[2] = { a->qp, b->qp };
	struct ibv_qp_init_attr_ex init = { .send_cq = a->cq, .recv_cq = a->cq, .qp_type = IBV_QPT_UD, .cap = { 32, 1, 1, 1, 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = a->pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM };
	CHECK((a->qp = ibv_create_qp_ex(a->context, &init)));
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a->qp);
	b->qp = new_qp(b, 32, 0, 1);
	for (int i = 0; i < 2; i++) {
		to_init(i ? b->qp : a->qp, QKEY, 0);
		to_rts(i ? b->qp : a->qp);
	}
	struct ibv_ah *ah = handle(a, b, 0, 0);
	for (int turn = 0; turn < 5; turn++) {
		for (int i = 0; i < 20; i++)
			EQUAL(post_recv(b, i % 16, 200), 0);
		/* The completion queue has 16 places: one that completes waits, and no other overtakes it. */
		for (int i = 0; i < 20; i++)
			post_nth(a, b, ah, i, i < 16 || i == 18 ? IBV_SEND_SIGNALED : 0);
		for (int i = 0; i < 16; i++)
			sent(a, i);
		sent(a, 18);
		for (int i = 0; i < 20; i++)
			took(b, i % 16, i, 20);
		/* An immediate, and an event that is asked for. */
		for (int i = 0; i < 6; i++)
			EQUAL(post_recv(b, i, 200), 0);
		for (int i = 0; i < 3; i++)
			post_nth(a, b, ah, i, 0);
		ibv_wr_start(ex);
		ex->wr_id = 3;
		ex->wr_flags = 0;
		ibv_wr_send_imm(ex, htobe32(77));
		ibv_wr_set_ud_addr(ex, ah, b->qp->qp_num, QKEY);
		ibv_wr_set_sge(ex, a->mr->lkey, (uintptr_t)a->memory, 20);
		EQUAL(ibv_wr_complete(ex), 0);
		for (int i = 0; i < 3; i++)
			took(b, i, i, 20);
		struct ibv_wc wc = wait_for(b);
		EQUAL(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
		EQUAL(be32toh(wc.imm_data), 77);
		EQUAL(ibv_req_notify_cq(b->cq, 1), 0);
		post_nth(a, b, ah, 0, 0);
		post_nth(a, b, ah, 1, 0);
		struct pollfd event = { .fd = b->channel->fd, .events = POLLIN };
		EQUAL(post_recv(b, 6, 200), 0);
		post_nth(a, b, ah, 2, IBV_SEND_SOLICITED);
		EQUAL(poll(&event, 1, 5000), 1);
		struct ibv_cq *cq;
		void *context;
		EQUAL(ibv_get_cq_event(b->channel, &cq, &context), 0);
		ibv_ack_cq_events(cq, 1);
		for (int i = 0; i < 3; i++)
			took(b, i + 4, i, 20);
		/* Longer than inline data may be, and a key that does not open. */
		for (int i = 0; i < 3; i++) {
			EQUAL(post_recv(b, i, 200), 0);
			EQUAL(post(a, send_wr(a, b, ah, i, 65)), 0);
		}
		struct ibv_send_wr *wr = send_wr(a, b, ah, 3, 65);
		wr->send_flags = IBV_SEND_INLINE;
		EQUAL(post(a, wr), EINVAL);
		wr->send_flags = 0;
		wr->sg_list->lkey++;
		EQUAL(post(a, wr), EINVAL);
		for (int i = 0; i < 3; i++)
			got(b, i, 65);
	}
	/* A receive to where it may not write. */
	struct ibv_mr *read_only = ibv_reg_mr(b->pd, b->memory, 100, 0);
	CHECK(read_only);
	struct ibv_sge sge = { (uintptr_t)b->memory, 100, read_only->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	EQUAL(ibv_post_recv(b->qp, &recv, &bad), EINVAL);
	CHECK(bad == &recv);
	sge.lkey = b->mr->lkey;
	EQUAL(ibv_post_recv(b->qp, &recv, &bad), 0);
	EQUAL(ibv_dereg_mr(read_only), 0);
	EQUAL(ibv_destroy_qp(a->qp), 0);
	EQUAL(ibv_destroy_qp(b->qp), 0);
	a->qp = first[0];
	b->qp = first[1];
	ibv_destroy_ah(ah);
}
