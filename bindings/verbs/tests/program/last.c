/*
 * Two processes, of which one ends right after it has posted its only message: the other gets it. The first device is the receiver's, the
 * second the sender's.
 */
#include "program.h"

/* What the receiver tells the sender. */
struct place {
	union ibv_gid gid;
	uint32_t qpn;
};

static void send_and_end(int from_receiver)
{
	struct place place;
	EQUAL(read(from_receiver, &place, sizeof place), sizeof place);
	struct end a;
	open_device(1);
	make(&a, 1, 16, 16);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh.dgid = place.gid };
	struct ibv_ah *ah = ibv_create_ah(a.pd, &attr);
	CHECK(ah);
	memcpy(a.memory, "last words", 10);
	struct ibv_sge sge = { (uintptr_t)a.memory, 10, a.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = place.qpn;
	wr.wr.ud.remote_qkey = QKEY;
	EQUAL(ibv_post_send(a.qp, &wr, &bad), 0);
	exit(0);
}

int main(void)
{
	int to_sender[2], status;
	EQUAL(pipe(to_sender), 0);
	pid_t sender = fork();
	if (sender == 0)
		send_and_end(to_sender[0]);
	struct end b;
	struct place place;
	open_device(0);
	make(&b, 0, 16, 16);
	EQUAL(post_recv(&b, 0, 100), 0);
	place.qpn = b.qp->qp_num;
	EQUAL(ibv_query_gid(b.context, 1, 0, &place.gid), 0);
	EQUAL(write(to_sender[1], &place, sizeof place), sizeof place);
	got(&b, 0, 10);
	CHECK(!memcmp(slot(&b, 0) + GRH, "last words", 10));
	EQUAL(waitpid(sender, &status, 0), sender);
	EQUAL(status, 0);
	printf("last: right\n");
	return 0;
}
