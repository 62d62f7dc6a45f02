/* Messages, their buffers, keys and queues. */
#include "program.h"

/* The 40 bytes, the fields of a completion, and the way back that they give. */
void grh(struct end *a, struct end *b)
{
	for (int family = 0; family < 2; family++) {
		struct ibv_ah *ah = handle(a, b, family, 0x6a);
		for (uint32_t len = 0; len <= 4096; len += len < 4 ? 1 : 1023) {
			for (uint32_t i = 0; i < len; i++)
				a->memory[i] = i * 7 + len;
			memset(slot(b, 0), 0xee, ROOM + GRH);
			EQUAL(post_recv(b, 0, GRH + len), 0);
			struct ibv_send_wr *wr = send_wr(a, b, ah, 5, len);
			wr->opcode = IBV_WR_SEND_WITH_IMM;
			wr->imm_data = htobe32(0xcafef00d);
			EQUAL(post(a, wr), 0);
			sent(a, 5);
			struct ibv_wc wc = wait_for(b);
			EQUAL(wc.status, IBV_WC_SUCCESS);
			EQUAL(wc.byte_len, GRH + len);
			EQUAL(wc.src_qp, a->qp->qp_num);
			EQUAL(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
			EQUAL(be32toh(wc.imm_data), 0xcafef00d);
			CHECK(!memcmp(slot(b, 0) + GRH, a->memory, len));
			CHECK(len == ROOM || slot(b, 0)[GRH + len] == 0xee);
			union ibv_gid from, to;
			ibv_query_gid(a->context, 1, family, &from);
			ibv_query_gid(b->context, 1, family, &to);
			uint8_t *area = slot(b, 0);
			if (family == 0) {
				for (int i = 0; i < 20; i++)
					EQUAL(area[i], 0);
				EQUAL(area[20], 0x45);
				EQUAL(area[21], 0x6a);
				EQUAL(area[28], 9);
				CHECK(!memcmp(area + 32, from.raw + 12, 4) && !memcmp(area + 36, to.raw + 12, 4));
			} else {
				EQUAL(area[0], 0x66);
				EQUAL(area[1], 0xaa);
				EQUAL(area[2], 0xbc);
				EQUAL(area[3], 0xde);
				EQUAL(area[7], 9);
				CHECK(!memcmp(area + 8, from.raw, 16) && !memcmp(area + 24, to.raw, 16));
			}
			/* And back to whoever sent it. */
			struct ibv_ah *back = ibv_create_ah_from_wc(b->pd, &wc, (struct ibv_grh *)area, 1);
			CHECK(back);
			EQUAL(post_recv(a, 9, 100), 0);
			EQUAL(post(b, send_wr(b, a, back, 6, 10)), 0);
			sent(b, 6);
			got(a, 9, 10);
			/* With the same traffic class. */
			EQUAL(family ? slot(a, 9)[0] << 4 | slot(a, 9)[1] >> 4 : slot(a, 9)[21], family ? 0x66a : 0x6a);
			EQUAL(ibv_destroy_ah(back), 0);
		}
		EQUAL(ibv_destroy_ah(ah), 0);
	}
}

/* A receive whose memory was deregistered meanwhile: an error, and not a byte is written. */
void stale(struct end *a, struct end *b)
{
	struct ibv_ah *ah = handle(a, b, 0, 0);
	EQUAL(post_recv(b, 0, 1000), 0);
	EQUAL(post_recv(b, 1, 1000), 0);
	EQUAL(ibv_dereg_mr(b->mr), 0);
	b->mr = NULL;
	EQUAL(munmap(b->memory, 2 * b->half), 0);
	EQUAL(post(a, send_wr(a, b, ah, 1, 500)), 0);
	sent(a, 1);
	struct ibv_wc wc = wait_for(b);
	EQUAL(wc.status, IBV_WC_LOC_PROT_ERR);
	EQUAL(wc.wr_id, 0);
	wc = wait_for(b);
	EQUAL(wc.status, IBV_WC_WR_FLUSH_ERR);
	EQUAL(wc.wr_id, 1);
	EQUAL(state(b->qp), IBV_QPS_ERR);
	EQUAL(ibv_destroy_ah(ah), 0);
	/* Sends: a key that is gone, too wide, or another domain's. */
	struct ibv_pd *other = ibv_alloc_pd(a->context);
	struct ibv_mr *foreign = ibv_reg_mr(other, a->memory, 100, 0);
	CHECK(foreign);
	ah = handle(a, b, 0, 0);
	struct ibv_send_wr *wr = send_wr(a, b, ah, 2, 100);
	wr->sg_list->lkey = foreign->lkey;
	EQUAL(post(a, wr), EINVAL);
	wr->sg_list->lkey = a->mr->lkey;
	wr->sg_list->addr += 2 * a->half - 99;
	EQUAL(post(a, wr), EINVAL);
	EQUAL(ibv_dealloc_pd(other), EBUSY);
	EQUAL(ibv_dereg_mr(foreign), 0);
	EQUAL(ibv_dealloc_pd(other), 0);
	EQUAL(ibv_destroy_ah(ah), 0);
}

/* A receive that is too short ends its queue pair; after a reset it works again. */
void short_buffer(struct end *a, struct end *b)
{
	struct ibv_ah *ah = handle(a, b, 0, 0);
	EQUAL(post_recv(b, 0, GRH + 499), 0);
	EQUAL(post_recv(b, 1, GRH + 500), 0);
	EQUAL(post(a, send_wr(a, b, ah, 1, 500)), 0);
	sent(a, 1);
	struct ibv_wc wc = wait_for(b);
	EQUAL(wc.status, IBV_WC_LOC_LEN_ERR);
	wc = wait_for(b);
	EQUAL(wc.status, IBV_WC_WR_FLUSH_ERR);
	EQUAL(wc.wr_id, 1);
	EQUAL(state(b->qp), IBV_QPS_ERR);
	/* What is posted now is flushed, sends too. */
	EQUAL(post_recv(b, 2, 1000), 0);
	wc = wait_for(b);
	EQUAL(wc.status, IBV_WC_WR_FLUSH_ERR);
	EQUAL(wc.wr_id, 2);
	struct ibv_ah *back = handle(b, a, 0, 0);
	EQUAL(post(b, send_wr(b, a, back, 3, 10)), 0);
	wc = wait_for(b);
	EQUAL(wc.status, IBV_WC_WR_FLUSH_ERR);
	EQUAL(wc.wr_id, 3);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	EQUAL(ibv_modify_qp(b->qp, &attr, IBV_QP_STATE), 0);
	to_init(b->qp, QKEY, 0);
	to_rts(b->qp);
	EQUAL(post_recv(b, 4, GRH + 500), 0);
	EQUAL(post(a, send_wr(a, b, ah, 1, 500)), 0);
	sent(a, 1);
	got(b, 4, 500);
	ibv_destroy_ah(ah);
	ibv_destroy_ah(back);
}

/* Wrong keys: dropped and counted, and nothing else happens. */
void keys(struct end *a, struct end *b)
{
	struct ibv_ah *ah = handle(a, b, 0, 0);
	struct ibv_port_attr before, after;
	EQUAL(ibv_query_port(b->context, 1, &before), 0);
	EQUAL(post_recv(b, 0, 1000), 0);
	for (int i = 0; i < 3; i++) {
		struct ibv_send_wr *wr = send_wr(a, b, ah, i, 10);
		wr->wr.ud.remote_qkey = QKEY + 1;
		EQUAL(post(a, wr), 0);
		sent(a, i);
	}
	/* The queue pair's own Q_Key goes in place of one with the high bit. */
	struct ibv_send_wr *wr = send_wr(a, b, ah, 3, 10);
	wr->wr.ud.remote_qkey = 0x80000000u;
	EQUAL(post(a, wr), 0);
	sent(a, 3);
	got(b, 0, 10);
	EQUAL(ibv_query_port(b->context, 1, &after), 0);
	EQUAL(after.qkey_viol_cntr - before.qkey_viol_cntr, 3);
	/* A queue pair with the other P_Key of the table. */
	struct ibv_qp *first = a->qp;
	a->qp = new_qp(a, 16, 0, 1);
	EQUAL(after.pkey_tbl_len, 2);
	to_init(a->qp, QKEY, 1);
	to_rts(a->qp);
	EQUAL(post_recv(b, 1, 1000), 0);
	EQUAL(post(a, send_wr(a, b, ah, 4, 10)), 0);
	sent(a, 4);
	quiet(b);
	EQUAL(ibv_query_port(b->context, 1, &after), 0);
	EQUAL(after.bad_pkey_cntr - before.bad_pkey_cntr, 1);
	EQUAL(ibv_destroy_qp(a->qp), 0);
	a->qp = first;
	EQUAL(post(a, send_wr(a, b, ah, 5, 11)), 0);
	sent(a, 5);
	got(b, 1, 11);
	ibv_destroy_ah(ah);
}

/* Queues that are full refuse, with the request that was not taken; nothing is lost, and nothing out of order. */
void full(struct end *a, struct end *b)
{
	struct ibv_ah *ah = handle(a, b, 0, 0);
	int posted = 0;
	while (post_recv(b, posted % 16, 1000) == 0)
		posted++;
	EQUAL(posted, 16);
	EQUAL(post_recv(b, 0, 1000), ENOMEM);
	/* In one list, nothing can leave meanwhile: the queue's depth is taken. */
	static struct ibv_send_wr list[40];
	struct ibv_send_wr *bad = NULL;
	for (int i = 0; i < 40; i++) {
		list[i] = *send_wr(a, b, ah, i, 20);
		list[i].next = i < 39 ? &list[i + 1] : NULL;
	}
	EQUAL(ibv_post_send(a->qp, list, &bad), ENOMEM);
	CHECK(bad == &list[16]);
	/* What has left makes room, until the completion queue has none: then as many wait as the queue is deep. */
	int taken = 16, error;
	double until = now() + 1;
	do {
		error = post(a, send_wr(a, b, ah, taken, 20));
		taken += !error;
	} while (now() < until && taken < 100);
	EQUAL(error, ENOMEM);
	EQUAL(taken, 32);
	for (int i = 0; i < 32; i++)
		sent(a, i);
	quiet(a);
	for (int i = 0; i < 16; i++)
		got(b, i, 20);
	ibv_destroy_ah(ah);
}

/* More messages than a completion queue has places: it does not overrun. */
void overrun(struct end *a, struct end *b)
{
	struct ibv_ah *ah = handle(a, b, 0, 0);
	struct ibv_cq *few = ibv_create_cq(b->context, 4, NULL, NULL, 0);
	CHECK(few);
	struct ibv_qp_init_attr init = { .send_cq = b->cq, .recv_cq = few, .qp_type = IBV_QPT_UD, .cap = { 1, 16, 1, 1, 0 } };
	struct ibv_qp *first = b->qp;
	CHECK((b->qp = ibv_create_qp(b->pd, &init)));
	to_init(b->qp, QKEY, 0);
	to_rts(b->qp);
	for (int i = 0; i < 16; i++)
		EQUAL(post_recv(b, i, 1000), 0);
	for (int i = 0; i < 10; i++) {
		EQUAL(post(a, send_wr(a, b, ah, i, 30)), 0);
		sent(a, i);
	}
	/* The other queue's polls make rounds of the endpoint, in which all ten come. */
	quiet(b);
	struct ibv_cq *own = b->cq;
	b->cq = few;
	for (int i = 0; i < 4; i++)
		got(b, i, 30);
	quiet(b);
	EQUAL(post(a, send_wr(a, b, ah, 10, 31)), 0);
	sent(a, 10);
	got(b, 4, 31);
	EQUAL(ibv_destroy_cq(few), EBUSY);
	EQUAL(ibv_destroy_qp(b->qp), 0);
	EQUAL(ibv_destroy_cq(few), 0);
	b->cq = own;
	b->qp = first;
	ibv_destroy_ah(ah);
}

/* Queue pairs that go with all their work, and what is still on its way to them. */
void outstanding(struct end *a, struct end *b)
{
	struct ibv_ah *ah = handle(a, b, 0, 0);
	for (int turn = 0; turn < 50; turn++) {
		struct end c = *b;
		c.qp = new_qp(b, 16, 64, 1);
		to_init(c.qp, QKEY, 0);
		to_rts(c.qp);
		uint8_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct ibv_mr *mr = ibv_reg_mr(b->pd, page, 4096, IBV_ACCESS_LOCAL_WRITE);
		CHECK(mr);
		struct ibv_sge sge = { (uintptr_t)page, 4096, mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		for (int i = 0; i < 16; i++)
			EQUAL(ibv_post_recv(c.qp, &wr, &bad), 0);
		for (int i = 0; i < 8; i++)
			EQUAL(post(a, send_wr(a, &c, ah, i, 100)), 0);
		/* Its own sends, of which some wait. */
		struct ibv_ah *back = handle(b, a, 0, 0);
		int error = 0;
		for (int i = 0; i < 100 && !error; i++)
			error = post(&c, send_wr(b, a, back, i, 100));
		EQUAL(ibv_destroy_qp(c.qp), 0);
		EQUAL(ibv_destroy_ah(back), 0);
		EQUAL(ibv_dereg_mr(mr), 0);
		munmap(page, 4096);
		struct ibv_wc wc;
		double until = now() + 0.002;
		/* No completion of a queue pair that is gone. */
		while (now() < until)
			EQUAL(ibv_poll_cq(b->cq, 1, &wc), 0);
		for (int i = 0; i < 8; i++)
			sent(a, i);
	}
	EQUAL(ibv_dealloc_pd(b->pd), EBUSY);
	EQUAL(ibv_destroy_comp_channel(b->channel), EBUSY);
	EQUAL(post_recv(b, 3, 1000), 0);
	EQUAL(post(a, send_wr(a, b, ah, 77, 12)), 0);
	sent(a, 77);
	got(b, 3, 12);
	ibv_destroy_ah(ah);
}
