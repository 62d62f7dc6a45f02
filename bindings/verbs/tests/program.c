/*
 * A verbs program as anybody writes one: it knows nothing of what provides the verbs. Two devices that reach each other are
 * looked for, and one of the cases below is run over them. It ends with 0 if everything was as the verbs have it, else it says
 * what was not.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define QKEY 0x11111111u
#define GRH 40
#define ROOM 4096

#define FAIL(...)                                                     \
	do {                                                          \
		fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);       \
		fprintf(stderr, __VA_ARGS__);                         \
		fprintf(stderr, "\n");                                \
		exit(1);                                              \
	} while (0)
#define CHECK(x)                                                      \
	do {                                                          \
		if (!(x))                                             \
			FAIL("not so: %s (errno %d)", #x, errno);     \
	} while (0)
#define EQUAL(a, b)                                                                           \
	do {                                                                                  \
		long long a_ = (long long)(a), b_ = (long long)(b);                           \
		if (a_ != b_)                                                                 \
			FAIL("%s is %lld, not %s, which is %lld (errno %d)", #a, a_, #b, b_, errno); \
	} while (0)

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory; /* a sending half and a receiving half */
	size_t half;
};

static struct ibv_context *contexts[2];

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void open_both(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	EQUAL(count, 2);
	for (int i = 0; i < 2; i++)
		CHECK((contexts[i] = ibv_open_device(list[i])));
	ibv_free_device_list(list);
}

static int state(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	EQUAL(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	return attr.qp_state;
}

static void to_init(struct ibv_qp *qp, uint32_t qkey, uint16_t pkey_index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .pkey_index = pkey_index, .port_num = 1, .qkey = qkey };
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
}

static void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 0xfffff0;
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

static struct ibv_qp *new_qp(struct end *e, int depth, int inline_bytes, int all)
{
	struct ibv_qp_init_attr init = { .send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_UD, .sq_sig_all = all,
		.cap = { depth, depth, 4, 4, inline_bytes } };
	struct ibv_qp *qp = ibv_create_qp(e->pd, &init);
	CHECK(qp);
	EQUAL(init.cap.max_send_wr, depth);
	return qp;
}

static void make(struct end *e, int which, int depth, int cqe)
{
	memset(e, 0, sizeof *e);
	e->context = contexts[which];
	e->half = (size_t)depth * (ROOM + GRH);
	CHECK((e->pd = ibv_alloc_pd(e->context)));
	CHECK((e->channel = ibv_create_comp_channel(e->context)));
	CHECK((e->cq = ibv_create_cq(e->context, cqe, e, e->channel, 0)));
	e->memory = mmap(NULL, 2 * e->half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(e->memory != MAP_FAILED);
	memset(e->memory, 0xee, 2 * e->half);
	CHECK((e->mr = ibv_reg_mr(e->pd, e->memory, 2 * e->half, IBV_ACCESS_LOCAL_WRITE)));
	e->qp = new_qp(e, depth, 64, 1);
	to_init(e->qp, QKEY, 0);
	to_rts(e->qp);
}

static void unmake(struct end *e)
{
	if (e->qp)
		EQUAL(ibv_destroy_qp(e->qp), 0);
	EQUAL(ibv_destroy_cq(e->cq), 0);
	EQUAL(ibv_destroy_comp_channel(e->channel), 0);
	if (e->mr)
		EQUAL(ibv_dereg_mr(e->mr), 0);
	EQUAL(ibv_dealloc_pd(e->pd), 0);
	munmap(e->memory, 2 * e->half);
}

static uint8_t *slot(struct end *e, int n)
{
	return e->memory + e->half + (size_t)n * (ROOM + GRH);
}

static int post_recv(struct end *e, int n, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)slot(e, n), len, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	int e2 = ibv_post_recv(e->qp, &wr, &bad);
	CHECK(!e2 || bad == &wr);
	return e2;
}

static struct ibv_ah *handle(struct end *from, struct end *to, int gid_index, int traffic_class)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	EQUAL(ibv_query_gid(to->context, 1, gid_index, &attr.grh.dgid), 0);
	attr.grh.sgid_index = gid_index;
	attr.grh.hop_limit = 9;
	attr.grh.traffic_class = traffic_class;
	struct ibv_ah *ah = ibv_create_ah(from->pd, &attr);
	CHECK(ah);
	return ah;
}

static struct ibv_send_wr *send_wr(struct end *from, struct end *to, struct ibv_ah *ah, uint64_t id, uint32_t len)
{
	static __thread struct ibv_sge sge;
	static __thread struct ibv_send_wr wr;
	memset(&wr, 0, sizeof wr);
	sge = (struct ibv_sge){ (uintptr_t)from->memory, len, from->mr->lkey };
	wr.wr_id = id;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_SEND;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = to->qp->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	return &wr;
}

static int post(struct end *e, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	int error = ibv_post_send(e->qp, wr, &bad);
	CHECK(!error || bad);
	return error;
}

/* Polls one end until a completion comes; the other end, if given, is polled too. */
static struct ibv_wc wait_for(struct end *e)
{
	struct ibv_wc wc;
	double until = now() + 20;
	for (;;) {
		int n = ibv_poll_cq(e->cq, 1, &wc);
		CHECK(n >= 0);
		if (n == 1)
			return wc;
		if (now() > until)
			FAIL("no completion came");
	}
}

/* Nothing comes for a while. */
static void quiet(struct end *e)
{
	struct ibv_wc wc;
	double until = now() + 0.2;
	while (now() < until)
		EQUAL(ibv_poll_cq(e->cq, 1, &wc), 0);
}

static void sent(struct end *e, uint64_t id)
{
	struct ibv_wc wc = wait_for(e);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	EQUAL(wc.opcode, IBV_WC_SEND);
	EQUAL(wc.wr_id, id);
	EQUAL(wc.qp_num, e->qp->qp_num);
}

static void got(struct end *e, uint64_t id, uint32_t len)
{
	struct ibv_wc wc = wait_for(e);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	EQUAL(wc.opcode, IBV_WC_RECV);
	EQUAL(wc.wr_id, id);
	EQUAL(wc.byte_len, len + GRH);
}

/* The 40 bytes, the fields of a completion, and the way back that they give. */
static void grh(struct end *a, struct end *b)
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
				EQUAL(area[1] >> 4, 0xa);
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
			EQUAL(ibv_destroy_ah(back), 0);
		}
		EQUAL(ibv_destroy_ah(ah), 0);
	}
}

/* A receive whose memory was deregistered meanwhile: an error, and not a byte is written. */
static void stale(struct end *a, struct end *b)
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
static void short_buffer(struct end *a, struct end *b)
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
static void keys(struct end *a, struct end *b)
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
static void full(struct end *a, struct end *b)
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
static void overrun(struct end *a, struct end *b)
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
static void outstanding(struct end *a, struct end *b)
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

/* A child has no device; its parent goes on. */
static void forked(struct end *a, struct end *b)
{
	struct ibv_ah *ah = handle(a, b, 0, 0);
	EQUAL(ibv_fork_init(), 0);
	EQUAL(post_recv(b, 0, 1000), 0);
	pid_t child = fork();
	if (child == 0) {
		struct ibv_wc wc;
		memset(b->memory, 0x55, 2 * b->half);
		CHECK(ibv_poll_cq(b->cq, 1, &wc) < 0);
		EQUAL(post(a, send_wr(a, b, ah, 9, 10)), EIO);
		CHECK(!ibv_create_cq(a->context, 1, NULL, NULL, 0));
		exit(0);
	}
	int status;
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
	EQUAL(post(a, send_wr(a, b, ah, 1, 33)), 0);
	sent(a, 1);
	got(b, 0, 33);
	EQUAL(slot(b, 1)[0], 0xee);
	EQUAL(system("exit 3") >> 8, 3);
	ibv_destroy_ah(ah);
}

#define EACH 2000
struct worker {
	struct end end, *to;
	struct ibv_ah *ah;
	int received;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	int sends = 0, done = 0;
	double until = now() + 60;
	/* So few on the way that there is always a receive for them. */
	while ((done < EACH || w->received < EACH) && now() < until) {
		if (sends < EACH && sends - w->received < 8 &&
		    post(&w->end, send_wr(&w->end, w->to, w->ah, sends, 40)) == 0)
			sends++;
		struct ibv_wc wc[8];
		int n = ibv_poll_cq(w->end.cq, 8, wc);
		CHECK(n >= 0);
		for (int i = 0; i < n; i++) {
			EQUAL(wc[i].status, IBV_WC_SUCCESS);
			EQUAL(wc[i].qp_num, w->end.qp->qp_num);
			if (wc[i].opcode == IBV_WC_SEND) {
				EQUAL(wc[i].wr_id, done);
				done++;
			} else {
				EQUAL(wc[i].src_qp, w->to->qp->qp_num);
				w->received++;
				EQUAL(post_recv(&w->end, wc[i].wr_id, 200), 0);
			}
		}
	}
	EQUAL(done, EACH);
	EQUAL(w->received, EACH);
	return NULL;
}

/* Two threads on each of two devices. */
static void threads(struct end *a, struct end *b)
{
	static struct worker w[4];
	pthread_t thread[4];
	(void)a, (void)b;
	for (int i = 0; i < 4; i++) {
		make(&w[i].end, i & 1, 16, 64);
		for (int n = 0; n < 16; n++)
			EQUAL(post_recv(&w[i].end, n, 200), 0);
	}
	for (int i = 0; i < 4; i++) {
		w[i].to = &w[i ^ 1].end;
		w[i].ah = handle(&w[i].end, w[i].to, i >> 1, 0);
	}
	for (int i = 0; i < 4; i++)
		EQUAL(pthread_create(&thread[i], NULL, work, &w[i]), 0);
	for (int i = 0; i < 4; i++)
		EQUAL(pthread_join(thread[i], NULL), 0);
	for (int i = 0; i < 4; i++) {
		EQUAL(ibv_destroy_ah(w[i].ah), 0);
		unmake(&w[i].end);
	}
}

static long status_of(const char *name)
{
	char line[256];
	long value = -1;
	FILE *f = fopen("/proc/self/status", "r");
	while (fgets(line, sizeof line, f))
		if (!strncmp(line, name, strlen(name)))
			value = atol(line + strlen(name) + 1);
	fclose(f);
	return value;
}

/* Opened and closed ten thousand times: memory, threads and descriptors stay as they were. */
static void cycles(struct end *a, struct end *b)
{
	(void)a, (void)b;
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	long memory = 0, tasks = 0;
	int fd = -1;
	for (int i = 0; i < 10000; i++) {
		struct ibv_context *context = ibv_open_device(list[i & 1]);
		CHECK(context);
		struct ibv_pd *pd = ibv_alloc_pd(context);
		struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
		struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
		struct ibv_mr *mr = ibv_reg_mr(pd, &count, sizeof count, 0);
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 4, 4, 1, 1, 0 } };
		struct ibv_qp *qp = ibv_create_qp(pd, &init);
		CHECK(pd && channel && cq && mr && qp);
		if (i % 3) {
			EQUAL(ibv_destroy_qp(qp), 0);
			EQUAL(ibv_dereg_mr(mr), 0);
			EQUAL(ibv_destroy_cq(cq), 0);
			EQUAL(ibv_destroy_comp_channel(channel), 0);
			EQUAL(ibv_dealloc_pd(pd), 0);
		} else {
			/* Left behind: the endpoint must be rid of it; the structures are the program's loss. */
			close(channel->fd);
			EQUAL(ibv_dereg_mr(mr), 0);
		}
		EQUAL(ibv_close_device(context), 0);
		if (i == 1000) {
			memory = status_of("VmRSS");
			tasks = status_of("Threads");
			fd = dup(0);
		}
	}
	/* A third of the queue pairs were left behind, with their structures: a kilobyte each or two. */
	long grown = status_of("VmRSS") - memory;
	if (grown > 3000 * 3)
		FAIL("%ld KiB more after 9,000 cycles", grown);
	EQUAL(status_of("Threads"), tasks);
	int last = dup(0);
	CHECK(last <= fd + 1);
	ibv_free_device_list(list);
}

/* The extended ways to send and to poll. */
static void extended(struct end *a, struct end *b)
{
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(b->context, &cq_init);
	CHECK(cq);
	cq_init.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
	CHECK(!ibv_create_cq_ex(b->context, &cq_init) && errno == EOPNOTSUPP);
	struct ibv_qp *first[2] = { a->qp, b->qp };
	struct ibv_qp_init_attr_ex init = { .send_cq = a->cq, .recv_cq = a->cq, .qp_type = IBV_QPT_UD, .cap = { 8, 1, 4, 1, 128 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = a->pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM };
	CHECK((a->qp = ibv_create_qp_ex(a->context, &init)));
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a->qp);
	CHECK(ex && !ibv_qp_to_qp_ex(first[0]));
	init.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE;
	CHECK(!ibv_create_qp_ex(a->context, &init) && errno == EOPNOTSUPP);
	struct ibv_qp_init_attr plain = { .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_UD,
		.cap = { 1, 8, 1, 4, 0 } };
	CHECK((b->qp = ibv_create_qp(b->pd, &plain)));
	for (int i = 0; i < 2; i++) {
		to_init(i ? b->qp : a->qp, QKEY, 0);
		to_rts(i ? b->qp : a->qp);
	}
	/* A receive in three pieces. */
	struct ibv_sge pieces[3] = { { (uintptr_t)slot(b, 0), GRH, b->mr->lkey }, { (uintptr_t)slot(b, 1), 3, b->mr->lkey },
		{ (uintptr_t)slot(b, 2), 100, b->mr->lkey } };
	struct ibv_recv_wr wr = { .wr_id = 70, .sg_list = pieces, .num_sge = 3 }, *bad;
	EQUAL(ibv_post_recv(b->qp, &wr, &bad), 0);
	EQUAL(post_recv(b, 3, 200), 0);
	EQUAL(post_recv(b, 4, 200), 0);
	struct ibv_ah *ah = handle(a, b, 1, 0);
	memcpy(a->memory, "abcdefghij", 10);
	/* One that is given up, then three. */
	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, ah, b->qp->qp_num, QKEY);
	ibv_wr_set_sge(ex, a->mr->lkey, (uintptr_t)a->memory, 10);
	ibv_wr_abort(ex);
	ibv_wr_start(ex);
	struct ibv_sge gather[2] = { { (uintptr_t)a->memory + 2, 4, a->mr->lkey }, { (uintptr_t)a->memory, 2, a->mr->lkey } };
	ex->wr_id = 2;
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, ah, b->qp->qp_num, QKEY);
	ibv_wr_set_sge_list(ex, 2, gather);
	char own[16] = "inline";
	ex->wr_id = 3;
	ex->wr_flags = 0;
	ibv_wr_send_imm(ex, htobe32(99));
	ibv_wr_set_ud_addr(ex, ah, b->qp->qp_num, QKEY);
	ibv_wr_set_inline_data(ex, own, 6);
	memset(own, 'x', sizeof own);
	struct ibv_data_buf bufs[2] = { { "12", 2 }, { "345", 3 } };
	ex->wr_id = 4;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, ah, b->qp->qp_num, QKEY);
	ibv_wr_set_inline_data_list(ex, 2, bufs);
	EQUAL(ibv_wr_complete(ex), 0);
	sent(a, 2);
	sent(a, 4);
	struct ibv_poll_cq_attr poll_attr = { 0 };
	const char *want[3] = { "cdefab", "inline", "12345" };
	for (int i = 0; i < 3;) {
		if (ibv_start_poll(cq, &poll_attr) == ENOENT)
			continue;
		do {
			EQUAL(cq->status, IBV_WC_SUCCESS);
			EQUAL(cq->wr_id, i == 0 ? 70 : i + 2);
			EQUAL(ibv_wc_read_opcode(cq), IBV_WC_RECV);
			EQUAL(ibv_wc_read_byte_len(cq), GRH + strlen(want[i]));
			EQUAL(ibv_wc_read_qp_num(cq), b->qp->qp_num);
			EQUAL(ibv_wc_read_src_qp(cq), a->qp->qp_num);
			EQUAL(ibv_wc_read_wc_flags(cq), i == 1 ? IBV_WC_GRH | IBV_WC_WITH_IMM : IBV_WC_GRH);
			if (i == 1)
				EQUAL(be32toh(ibv_wc_read_imm_data(cq)), 99);
			if (i == 0)
				CHECK(!memcmp(slot(b, 1), "cde\xee", 4) && !memcmp(slot(b, 2), "fab\xee", 4));
			else
				CHECK(!memcmp(slot(b, i + 2) + GRH, want[i], strlen(want[i])));
			i++;
		} while (i < 3 && ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
	EQUAL(ibv_destroy_qp(a->qp), 0);
	EQUAL(ibv_destroy_qp(b->qp), 0);
	EQUAL(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	a->qp = first[0];
	b->qp = first[1];
	ibv_destroy_ah(ah);
}

static int readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	return poll(&p, 1, ms) == 1;
}

/* Who sleeps at a channel is woken, by what it has asked for. */
static void events(struct end *a, struct end *b)
{
	struct ibv_ah *ah = handle(a, b, 0, 0);
	for (int i = 0; i < 4; i++)
		EQUAL(post_recv(b, i, 200), 0);
	EQUAL(ibv_req_notify_cq(b->cq, 1), 0);
	EQUAL(post(a, send_wr(a, b, ah, 1, 10)), 0);
	CHECK(!readable(b->channel->fd, 100));
	struct ibv_send_wr *wr = send_wr(a, b, ah, 2, 10);
	wr->send_flags = IBV_SEND_SOLICITED;
	EQUAL(post(a, wr), 0);
	CHECK(readable(b->channel->fd, 5000));
	struct ibv_cq *cq;
	void *context;
	EQUAL(ibv_get_cq_event(b->channel, &cq, &context), 0);
	CHECK(cq == b->cq && context == b);
	CHECK(!readable(b->channel->fd, 20));
	ibv_ack_cq_events(b->cq, 1);
	got(b, 0, 10);
	got(b, 1, 10);
	/* Any, once. */
	EQUAL(ibv_req_notify_cq(b->cq, 0), 0);
	EQUAL(post(a, send_wr(a, b, ah, 3, 10)), 0);
	EQUAL(post(a, send_wr(a, b, ah, 4, 10)), 0);
	CHECK(readable(b->channel->fd, 5000));
	/* Nobody takes the event: the queue takes it back when it goes. */
	struct end c;
	make(&c, 1, 4, 4);
	EQUAL(ibv_req_notify_cq(c.cq, 0), 0);
	EQUAL(post_recv(&c, 0, 200), 0);
	EQUAL(post(a, send_wr(a, &c, ah, 5, 10)), 0);
	CHECK(readable(c.channel->fd, 5000));
	EQUAL(ibv_destroy_qp(c.qp), 0);
	c.qp = NULL;
	unmake(&c);
	EQUAL(ibv_get_cq_event(b->channel, &cq, &context), 0);
	ibv_ack_cq_events(b->cq, 1);
	got(b, 2, 10);
	got(b, 3, 10);
	for (int i = 1; i <= 5; i++)
		sent(a, i);
	ibv_destroy_ah(ah);
}

/* States, masks and attributes that cannot be. */
static void refused(struct end *a, struct end *b)
{
	struct ibv_qp *qp = new_qp(a, 4, 0, 1), *first = a->qp;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_ah *ah = handle(a, b, 0, 0);
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
	attr.qp_state = IBV_QPS_RTS;
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), EINVAL);
	EQUAL(state(qp), IBV_QPS_RESET);
	a->qp = qp;
	EQUAL(post_recv(a, 0, 100), EINVAL);
	to_init(qp, QKEY, 0);
	EQUAL(post_recv(a, 0, 100), 0);
	EQUAL(post(a, send_wr(a, b, ah, 1, 10)), EINVAL);
	to_rts(qp);
	EQUAL(post(a, send_wr(a, b, ah, 1, 4097)), EINVAL);
	struct ibv_send_wr *wr = send_wr(a, b, ah, 1, 10);
	wr->send_flags = IBV_SEND_INLINE;
	EQUAL(post(a, wr), EINVAL);
	wr->send_flags = 0;
	wr->opcode = IBV_WR_RDMA_WRITE;
	EQUAL(post(a, wr), EINVAL);
	struct ibv_qp_attr known;
	struct ibv_qp_init_attr init;
	EQUAL(ibv_query_qp(qp, &known, IBV_QP_QKEY, &init), 0);
	EQUAL(known.qkey, QKEY);
	EQUAL(known.sq_psn, 0xfffff0);
	EQUAL(known.port_num, 1);
	EQUAL(init.cap.max_send_wr, 4);
	CHECK(init.send_cq == a->cq && init.qp_type == IBV_QPT_UD);
	EQUAL(ibv_destroy_qp(qp), 0);
	a->qp = first;
	for (int type = IBV_QPT_RC; type <= IBV_QPT_UC; type++) {
		struct ibv_qp_init_attr other = { .send_cq = a->cq, .recv_cq = a->cq, .qp_type = type, .cap = { 1, 1, 1, 1, 0 } };
		CHECK(!ibv_create_qp(a->pd, &other) && errno == EOPNOTSUPP);
	}
	struct ibv_srq_init_attr srq = { .attr = { 1, 1, 0 } };
	CHECK(!ibv_create_srq(a->pd, &srq) && errno == EOPNOTSUPP);
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 1 } };
	EQUAL(ibv_attach_mcast(a->qp, &group, 0xc001), EOPNOTSUPP);
	CHECK(!ibv_alloc_mw(a->pd, IBV_MW_TYPE_1) && errno == EOPNOTSUPP);
	/* Nobody there, no such GID, a group, ourselves. */
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid.raw = { [10] = 0xff, [11] = 0xff, 192, 0, 2, 99 } } };
	CHECK(!ibv_create_ah(a->pd, &to) && errno == ETIMEDOUT);
	to.grh.sgid_index = 7;
	CHECK(!ibv_create_ah(a->pd, &to) && errno == EINVAL);
	to.grh.sgid_index = 1;
	to.grh.dgid = group;
	CHECK(!ibv_create_ah(a->pd, &to) && errno == EOPNOTSUPP);
	ibv_query_gid(a->context, 1, 1, &to.grh.dgid);
	CHECK(!ibv_create_ah(a->pd, &to) && errno == EINVAL);
	to.is_global = 0;
	CHECK(!ibv_create_ah(a->pd, &to) && errno == EINVAL);
	CHECK(!ibv_create_cq(a->context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(ibv_query_gid(a->context, 1, 2, &group) == -1);
	CHECK(ibv_query_gid(a->context, 2, 0, &group) == -1);
	ibv_destroy_ah(ah);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(struct end *, struct end *);
	} cases[] = { { "grh", grh }, { "stale", stale }, { "short", short_buffer }, { "keys", keys }, { "full", full },
		{ "overrun", overrun }, { "outstanding", outstanding }, { "forked", forked }, { "threads", threads },
		{ "cycles", cycles }, { "extended", extended }, { "events", events }, { "refused", refused } };
	struct end a, b;
	open_both();
	make(&a, 0, 16, 16);
	make(&b, 1, 16, 64);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int n = 1; n < argc; n++)
			if (!strcmp(cases[i].name, argv[n])) {
				cases[i].run(&a, &b);
				printf("%s: right\n", argv[n]);
				fflush(stdout);
			}
	unmake(&a);
	unmake(&b);
	EQUAL(ibv_close_device(contexts[0]), 0);
	EQUAL(ibv_close_device(contexts[1]), 0);
	return 0;
}
