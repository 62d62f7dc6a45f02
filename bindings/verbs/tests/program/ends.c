/* The ends of messages, and what the cases do with them. */
#include "program.h"

struct ibv_context *contexts[2];

double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

void open_device(int which)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	EQUAL(count, 2);
	CHECK((contexts[which] = ibv_open_device(list[which])));
	ibv_free_device_list(list);
}

int state(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	EQUAL(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	return attr.qp_state;
}

void to_init(struct ibv_qp *qp, uint32_t qkey, uint16_t pkey_index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .pkey_index = pkey_index, .port_num = 1, .qkey = qkey };
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
}

void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 0xfffff0;
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

struct ibv_qp *new_qp(struct end *e, int depth, int inline_bytes, int all)
{
	struct ibv_qp_init_attr init = { .send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_UD, .sq_sig_all = all,
		.cap = { depth, depth, 4, 4, inline_bytes } };
	struct ibv_qp *qp = ibv_create_qp(e->pd, &init);
	CHECK(qp);
	EQUAL(init.cap.max_send_wr, depth);
	return qp;
}

void make(struct end *e, int which, int depth, int cqe)
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

void unmake(struct end *e)
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

uint8_t *slot(struct end *e, int n)
{
	return e->memory + e->half + (size_t)n * (ROOM + GRH);
}

int post_recv(struct end *e, int n, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)slot(e, n), len, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	int e2 = ibv_post_recv(e->qp, &wr, &bad);
	CHECK(!e2 || bad == &wr);
	return e2;
}

struct ibv_ah *handle(struct end *from, struct end *to, int gid_index, int traffic_class)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	EQUAL(ibv_query_gid(to->context, 1, gid_index, &attr.grh.dgid), 0);
	attr.grh.sgid_index = gid_index;
	attr.grh.hop_limit = 9;
	attr.grh.traffic_class = traffic_class;
	attr.grh.flow_label = 0xabcde;
	struct ibv_ah *ah = ibv_create_ah(from->pd, &attr);
	CHECK(ah);
	return ah;
}

struct ibv_send_wr *send_wr(struct end *from, struct end *to, struct ibv_ah *ah, uint64_t id, uint32_t len)
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

int post(struct end *e, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	int error = ibv_post_send(e->qp, wr, &bad);
	CHECK(!error || bad);
	return error;
}

/* Polls one end until a completion comes; the other end, if given, is polled too. */
struct ibv_wc wait_for(struct end *e)
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
void quiet(struct end *e)
{
	struct ibv_wc wc;
	double until = now() + 0.2;
	while (now() < until)
		EQUAL(ibv_poll_cq(e->cq, 1, &wc), 0);
}

void sent(struct end *e, uint64_t id)
{
	struct ibv_wc wc = wait_for(e);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	EQUAL(wc.opcode, IBV_WC_SEND);
	EQUAL(wc.wr_id, id);
	EQUAL(wc.qp_num, e->qp->qp_num);
}

void got(struct end *e, uint64_t id, uint32_t len)
{
	struct ibv_wc wc = wait_for(e);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	EQUAL(wc.opcode, IBV_WC_RECV);
	EQUAL(wc.wr_id, id);
	EQUAL(wc.byte_len, len + GRH);
}
