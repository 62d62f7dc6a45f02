/* What the cases have in common. */
#ifndef PROGRAM_H
#define PROGRAM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
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

/* The two devices. */
extern struct ibv_context *contexts[2];

double now(void);
void open_device(int which);
int state(struct ibv_qp *qp);
void to_init(struct ibv_qp *qp, uint32_t qkey, uint16_t pkey_index);
void to_rts(struct ibv_qp *qp);
struct ibv_qp *new_qp(struct end *e, int depth, int inline_bytes, int all);
void make(struct end *e, int which, int depth, int cqe);
void unmake(struct end *e);
uint8_t *slot(struct end *e, int n);
int post_recv(struct end *e, int n, uint32_t len);
struct ibv_ah *handle(struct end *from, struct end *to, int gid_index, int traffic_class);
struct ibv_send_wr *send_wr(struct end *from, struct end *to, struct ibv_ah *ah, uint64_t id, uint32_t len);
int post(struct end *e, struct ibv_send_wr *wr);
struct ibv_wc wait_for(struct end *e);
void quiet(struct end *e);
void sent(struct end *e, uint64_t id);
void got(struct end *e, uint64_t id, uint32_t len);

/* The cases. */
void grh(struct end *a, struct end *b);
void stale(struct end *a, struct end *b);
void short_buffer(struct end *a, struct end *b);
void keys(struct end *a, struct end *b);
void full(struct end *a, struct end *b);
void overrun(struct end *a, struct end *b);
void outstanding(struct end *a, struct end *b);
void forked(struct end *a, struct end *b);
void threads(struct end *a, struct end *b);
void cycles(struct end *a, struct end *b);
void extended(struct end *a, struct end *b);
void events(struct end *a, struct end *b);
void refused(struct end *a, struct end *b);
void ending(struct end *a, struct end *b);
void lists(struct end *a, struct end *b);
void alike(struct end *a, struct end *b);
void odd(struct end *a, struct end *b);
void held(struct end *a, struct end *b);

#endif
