#define _GNU_SOURCE
/* Interrupt sources, which later releases made stable as they are. */
#define ALLOW_EXPERIMENTAL_API
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shim.h"

#include <rte_interrupts.h>
#include <rte_log.h>

#if RTE_VERSION < RTE_VERSION_NUM(22, 11, 0, 0)
#error "DPDK 22.11 or newer is needed"
#endif

/* Rust reads these fields with loads of exactly these widths. */
#define FIELD_SIZE(f) sizeof(((struct rte_mbuf *)0)->f)
_Static_assert(FIELD_SIZE(buf_addr) == sizeof(void *), "mbuf.buf_addr");
_Static_assert(FIELD_SIZE(data_off) == 2, "mbuf.data_off");
_Static_assert(FIELD_SIZE(refcnt) == 2, "mbuf.refcnt");
_Static_assert(FIELD_SIZE(nb_segs) == 2, "mbuf.nb_segs");
_Static_assert(FIELD_SIZE(port) == 2, "mbuf.port");
_Static_assert(FIELD_SIZE(ol_flags) == 8, "mbuf.ol_flags");
_Static_assert(FIELD_SIZE(pkt_len) == 4, "mbuf.pkt_len");
_Static_assert(FIELD_SIZE(data_len) == 2, "mbuf.data_len");
_Static_assert(FIELD_SIZE(vlan_tci) == 2, "mbuf.vlan_tci");
_Static_assert(FIELD_SIZE(hash.rss) == 4, "mbuf.hash.rss");
_Static_assert(FIELD_SIZE(buf_len) == 2, "mbuf.buf_len");

const uint64_t SPW_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
const uint64_t SPW_RX_OFFLOAD_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
const uint64_t SPW_RX_OFFLOAD_CHECKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
const uint64_t SPW_RSS_IP = RTE_ETH_RSS_IP;
const uint64_t SPW_RSS_UDP = RTE_ETH_RSS_UDP;
const uint64_t SPW_MBUF_F_RX_RSS_HASH = RTE_MBUF_F_RX_RSS_HASH;
const uint64_t SPW_MBUF_F_RX_IP_CKSUM_MASK = RTE_MBUF_F_RX_IP_CKSUM_MASK;
const uint64_t SPW_MBUF_F_RX_IP_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
const uint64_t SPW_MBUF_F_RX_L4_CKSUM_MASK = RTE_MBUF_F_RX_L4_CKSUM_MASK;
const uint64_t SPW_MBUF_F_RX_L4_CKSUM_GOOD = RTE_MBUF_F_RX_L4_CKSUM_GOOD;

const char *spw_driver_dir(void)
{
#ifdef RTE_EAL_PMD_PATH
	return RTE_EAL_PMD_PATH;
#else
	return "";
#endif
}

int spw_errno(void)
{
	return rte_errno;
}

uint32_t spw_lcore_id(void)
{
	return rte_lcore_id();
}

uint16_t spw_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n)
{
	return rte_eth_rx_burst(port, queue, pkts, n);
}

uint16_t spw_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n)
{
	return rte_eth_tx_burst(port, queue, pkts, n);
}

int spw_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **pkts, uint16_t n)
{
	return rte_pktmbuf_alloc_bulk(pool, pkts, n);
}

void spw_free(struct rte_mbuf *pkt)
{
	rte_pktmbuf_free(pkt);
}

void spw_free_bulk(struct rte_mbuf **pkts, uint32_t n)
{
	rte_pktmbuf_free_bulk(pkts, n);
}

void spw_pool_flush(struct rte_mempool *pool)
{
	struct rte_mempool_cache *cache = rte_mempool_default_cache(pool, rte_lcore_id());

	if (cache != NULL)
		rte_mempool_cache_flush(cache, pool);
}

uint16_t spw_pool_data_room(struct rte_mempool *pool)
{
	return rte_pktmbuf_data_room_size(pool);
}

uint32_t spw_pool_size(const struct rte_mempool *pool)
{
	return pool->size;
}

int spw_link_get(uint16_t port, struct spw_link *out)
{
	struct rte_eth_link link = {0};
	int ret = rte_eth_link_get_nowait(port, &link);

	if (ret != 0)
		return ret;
	out->speed_mbps = link.link_speed;
	out->up = link.link_status == RTE_ETH_LINK_UP;
	out->full_duplex = link.link_duplex == RTE_ETH_LINK_FULL_DUPLEX;
	out->autoneg = link.link_autoneg == RTE_ETH_LINK_AUTONEG;
	return 0;
}

const char *spw_bus_name(const struct rte_device *dev)
{
	const struct rte_bus *bus = dev == NULL ? NULL : rte_dev_bus(dev);

	return bus == NULL ? "" : rte_bus_name(bus);
}

/* In C, since a release that cancels the thread unwinds it from here. */
static void park(void *stopped)
{
	sem_post(stopped);
	for (;;)
		pause();
}

int spw_park_control(void)
{
	/* Not on the stack: the thread that stopped may still be leaving sem_post when we go on. */
	static sem_t stopped;
	/* A source of its own, which nobody will ask to be removed; an alarm's is removed during clean-up, which waits
	 * until its callback has returned. Neither is freed: the thread stays in it. */
	struct rte_intr_handle *handle = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
	int fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
	int ret;

	if (handle == NULL || fd < 0 || sem_init(&stopped, 0, 0) != 0)
		return -ENOMEM;
	if (rte_intr_fd_set(handle, fd) != 0 || rte_intr_type_set(handle, RTE_INTR_HANDLE_EXT) != 0)
		return -EINVAL;
	ret = rte_intr_callback_register(handle, park, &stopped);
	if (ret < 0)
		return ret;
	while (sem_wait(&stopped) != 0 && errno == EINTR)
		;
	return 0;
}

static ssize_t log_write(void *cookie, const char *text, size_t len)
{
	int level = rte_log_cur_msg_loglevel();

	(void)cookie;
	spw_log_fn fn = __atomic_load_n((spw_log_fn *)cookie, __ATOMIC_ACQUIRE);
	fn(level < 0 ? RTE_LOG_INFO : (uint32_t)level, text, len);
	return (ssize_t)len;
}

int spw_log_open(spw_log_fn fn)
{
	/* The stream is made once and stays for the life of the process: DPDK may log until its very end. */
	static spw_log_fn target;
	static FILE *stream;

	__atomic_store_n(&target, fn, __ATOMIC_RELEASE);
	if (stream == NULL) {
		cookie_io_functions_t io = { .write = log_write };

		stream = fopencookie(&target, "w", io);
		if (stream == NULL)
			return -errno;
	}
	return rte_openlog_stream(stream);
}

int spw_telemetry_add(struct rte_tel_data *data, const char *name, uint64_t value)
{
#if RTE_VERSION >= RTE_VERSION_NUM(23, 3, 0, 0)
	return rte_tel_data_add_dict_uint(data, name, value);
#else
	return rte_tel_data_add_dict_u64(data, name, value);
#endif
}
