/* What Rust cannot call by itself: static inline functions, macros, thread-local variables, and the few structures
 * whose C layout differs between DPDK releases. Functions of the data path work on a burst, so that the cost of the
 * call is paid once for many packets. */
#ifndef SPW_SHIM_H
#define SPW_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <rte_config.h>
#include <rte_build_config.h>
#include <rte_version.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_alarm.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_ether.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_telemetry.h>

/* Byte offsets of the fields of an mbuf. The names of the unions around them change between releases; their offsets
 * are what Rust needs, and the compiler knows them. */
enum {
	SPW_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	SPW_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	SPW_MBUF_REFCNT = offsetof(struct rte_mbuf, refcnt),
	SPW_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	SPW_MBUF_PORT = offsetof(struct rte_mbuf, port),
	SPW_MBUF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags),
	SPW_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	SPW_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	SPW_MBUF_VLAN_TCI = offsetof(struct rte_mbuf, vlan_tci),
	SPW_MBUF_RSS_HASH = offsetof(struct rte_mbuf, hash.rss),
	SPW_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	SPW_MBUF_POOL = offsetof(struct rte_mbuf, pool),
	SPW_MBUF_NEXT = offsetof(struct rte_mbuf, next),
	SPW_MBUF_SIZE = sizeof(struct rte_mbuf),
	SPW_HEADROOM = RTE_PKTMBUF_HEADROOM,
	SPW_ETHER_OVERHEAD = RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN,
	SPW_POOL_NAME_SIZE = RTE_MEMPOOL_NAMESIZE,
	SPW_POOL_CACHE_MAX = RTE_MEMPOOL_CACHE_MAX_SIZE,
};

/* Macros whose casts keep bindgen from seeing a constant. */
extern const uint64_t SPW_TX_OFFLOAD_MULTI_SEGS;
extern const uint64_t SPW_RX_OFFLOAD_SCATTER;
extern const uint64_t SPW_RX_OFFLOAD_CHECKSUM;
extern const uint64_t SPW_RSS_IP;
extern const uint64_t SPW_RSS_UDP;
extern const uint64_t SPW_MBUF_F_RX_RSS_HASH;
extern const uint64_t SPW_MBUF_F_RX_IP_CKSUM_MASK;
extern const uint64_t SPW_MBUF_F_RX_IP_CKSUM_GOOD;
extern const uint64_t SPW_MBUF_F_RX_L4_CKSUM_MASK;
extern const uint64_t SPW_MBUF_F_RX_L4_CKSUM_GOOD;

/* What every release can tell about a link, in one shape. */
struct spw_link {
	uint32_t speed_mbps; /* UINT32_MAX: the driver does not know */
	uint8_t up;
	uint8_t full_duplex;
	uint8_t autoneg;
};

/* Where DPDK loads its shared drivers from; empty when they are linked in. */
const char *spw_driver_dir(void);

/* The error number of the calling thread's last failed DPDK call. */
int spw_errno(void);
/* Lcore of the calling thread, LCORE_ID_ANY (UINT32_MAX) when it has none. */
uint32_t spw_lcore_id(void);

/* Adds a number to an answer of telemetry; its function changes its name between releases. 0, or a negative errno. */
int spw_telemetry_add(struct rte_tel_data *data, const char *name, uint64_t value);

/* Appends up to n received packets to pkts; the count written is returned. */
uint16_t spw_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);
/* Offers n packets; the first of them, as many as returned, belong to the driver from then on. */
uint16_t spw_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t n);
/* All n or none: 0, or a negative errno. */
int spw_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **pkts, uint16_t n);
/* Puts back whole chains. */
void spw_free(struct rte_mbuf *pkt);
void spw_free_bulk(struct rte_mbuf **pkts, uint32_t n);

/* Gives the calling thread's cached objects back to the pool they came from. */
void spw_pool_flush(struct rte_mempool *pool);
uint16_t spw_pool_data_room(struct rte_mempool *pool);
uint32_t spw_pool_size(const struct rte_mempool *pool);

/* Link state without waiting for the hardware: 0, or a negative errno. */
int spw_link_get(uint16_t port, struct spw_link *out);
/* Name of the bus that a device sits on, for example "vdev" or "pci". */
const char *spw_bus_name(const struct rte_device *dev);

/* From now on, before is called each time that the memif driver of a started port is about to unmap memory, on the thread
 * that does it, and a message that finds its receiver gone counts as sent: 0, or a negative errno if the driver's calls
 * could not be found. */
int spw_guard_memif(uint16_t port, void (*before)(void));

/* Stops DPDK's control thread for good, between two of its callbacks. Returns when it has stopped: 0, or a negative
 * errno. */
int spw_park_control(void);

/* DPDK's log, a piece at a time. level is 1 (emergency) to 8 (debug), as in rte_log.h. */
typedef void (*spw_log_fn)(uint32_t level, const char *text, size_t len);
/* Sends DPDK's log to fn from now on, also before EAL starts: 0, or a negative errno. */
int spw_log_open(spw_log_fn fn);

#endif
