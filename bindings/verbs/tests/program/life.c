/* Processes, threads, objects that come and go, the extended interfaces, events, and what is refused. */
#include "program.h"

/* Where `spraywire stats` asks this process. */
static struct sockaddr_un stats_address(pid_t pid)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	snprintf(address.sun_path, sizeof address.sun_path, "%s/%d.sock", getenv("SPRAYWIRE_RUNTIME_DIR"), pid);
	return address;
}

/* Whether this process listens there. */
static int listens(const struct sockaddr_un *address)
{
	for (int fd = 3; fd < 1024; fd++) {
		struct sockaddr_un own = { 0 };
		socklen_t len = sizeof own;
		if (!getsockname(fd, (struct sockaddr *)&own, &len) && own.sun_family == AF_UNIX &&
		    !strcmp(own.sun_path, address->sun_path))
			return 1;
	}
	return 0;
}

/* A child has no device; its parent goes on. */
void forked(struct end *a, struct end *b)
{
	struct ibv_ah *ah = handle(a, b, 0, 0);
	EQUAL(ibv_fork_init(), 0);
	EQUAL(post_recv(b, 0, 1000), 0);
	struct sockaddr_un stats = stats_address(getpid());
	CHECK(listens(&stats));
	pid_t child = fork();
	if (child == 0) {
		struct ibv_wc wc;
		CHECK(!listens(&stats));
		memset(b->memory, 0x55, 2 * b->half);
		CHECK(ibv_poll_cq(b->cq, 1, &wc) < 0);
		EQUAL(post(a, send_wr(a, b, ah, 9, 10)), EIO);
		CHECK(!ibv_create_cq(a->context, 1, NULL, NULL, 0));
		exit(0);
	}
	int status;
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
	/* The socket is still there, and answers for the parent. */
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	EQUAL(connect(fd, (struct sockaddr *)&stats, sizeof stats), 0);
	char said[1 << 16] = "", pid[32];
	for (size_t at = 0, n = 1; n > 0 && at < sizeof said - 1; at += n)
		CHECK((n = read(fd, said + at, sizeof said - 1 - at)) <= sizeof said);
	sprintf(pid, "\"pid\":%d,", getpid());
	CHECK(strstr(said, pid));
	close(fd);
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
void threads(struct end *a, struct end *b)
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
void cycles(struct end *a, struct end *b)
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
void extended(struct end *a, struct end *b)
{
	memset(b->memory, 0xee, 2 * b->half);
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
	/* A length that wraps together with what is there already. */
	char own[16] = "inline";
	struct ibv_data_buf wild[2] = { { own, 2 }, { own, SIZE_MAX } };
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, ah, b->qp->qp_num, QKEY);
	ibv_wr_set_inline_data_list(ex, 2, wild);
	EQUAL(ibv_wr_complete(ex), EINVAL);
	/* That data is inline, only data that is set inline says: a key that does not open is one. */
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_INLINE;
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, ah, b->qp->qp_num, QKEY);
	ibv_wr_set_sge(ex, a->mr->lkey + 1, (uintptr_t)a->memory, 10);
	EQUAL(ibv_wr_complete(ex), EINVAL);
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	struct ibv_sge gather[2] = { { (uintptr_t)a->memory + 2, 4, a->mr->lkey }, { (uintptr_t)a->memory, 2, a->mr->lkey } };
	ex->wr_id = 2;
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, ah, b->qp->qp_num, QKEY);
	ibv_wr_set_sge_list(ex, 2, gather);
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
void events(struct end *a, struct end *b)
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
void refused(struct end *a, struct end *b)
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

static void *poll_for_ever(void *cq)
{
	struct ibv_wc wc;
	for (;;)
		if (ibv_poll_cq(cq, 1, &wc) < 0)
			FAIL("a poll failed while the process ended");
	return NULL;
}

/* The process ends while two threads of it poll: they are not told of an error. */
void ending(struct end *a, struct end *b)
{
	pthread_t thread[2];
	EQUAL(pthread_create(&thread[0], NULL, poll_for_ever, a->cq), 0);
	EQUAL(pthread_create(&thread[1], NULL, poll_for_ever, b->cq), 0);
	usleep(20000);
	printf("ending: right\n");
	exit(0);
}
