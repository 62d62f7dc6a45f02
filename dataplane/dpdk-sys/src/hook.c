/* Stands between net_memif and two calls by which it harms the process. See the notes on that driver in the dpdk crate:
 * - It unmaps the memory of its rings on DPDK's control thread while others may be polling them, and offers no way to be
 *   told (munmap).
 * - If the first message to a peer cannot be sent, because the peer is gone already, it closes a socket that DPDK's
 *   control thread still watches, and that thread then ends the process (sendmsg).
 * So these calls are led through here, in the driver's own table of addresses; nobody else's calls change. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim.h"

static void (*before_unmap)(void);

static int unmap(void *addr, size_t len)
{
	void (*before)(void) = __atomic_load_n(&before_unmap, __ATOMIC_ACQUIRE);

	if (before != NULL)
		before();
	/* Not munmap: with the driver linked into the program, that would lead here again. */
	return (int)syscall(SYS_munmap, addr, len);
}

/* A message to a peer that is gone counts as sent: the driver then reads the end of the connection, and ends it properly. */
static ssize_t send_message(int fd, const struct msghdr *message, int flags)
{
	/* Not sendmsg, for the same reason as above. */
	ssize_t sent = syscall(SYS_sendmsg, fd, message, flags | MSG_NOSIGNAL);

	if (sent < 0 && (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)) {
		sent = 0;
		for (size_t i = 0; i < message->msg_iovlen; i++)
			sent += (ssize_t)message->msg_iov[i].iov_len;
	}
	return sent;
}

static const struct {
	const char *name;
	void *ours;
} calls[] = {
	{ "munmap", (void *)unmap },
	{ "sendmsg", (void *)send_message },
};

#define CALLS (sizeof(calls) / sizeof(calls[0]))

#if defined(__LP64__) && (defined(__x86_64__) || defined(__aarch64__))

#if defined(__x86_64__)
#define IS_FUNCTION_SLOT(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#else
#define IS_FUNCTION_SLOT(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#endif

struct search {
	uintptr_t inside; /* an address within the object that is looked for */
	int slots[CALLS]; /* slots that lead to each of our functions now */
};

static bool contains(const struct dl_phdr_info *object, uintptr_t address, ElfW(Word) type)
{
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];
		uintptr_t start = object->dlpi_addr + part->p_vaddr;

		if (part->p_type == type && address >= start && address - start < part->p_memsz)
			return true;
	}
	return false;
}

static bool replace(const struct dl_phdr_info *object, void **slot, void *ours)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	void *start = (void *)((uintptr_t)slot & ~(page - 1));
	bool read_only = contains(object, (uintptr_t)slot, PT_GNU_RELRO);

	/* A slot is aligned, so it lies within one page. */
	if (read_only && mprotect(start, page, PROT_READ | PROT_WRITE) != 0)
		return false;
	__atomic_store_n(slot, ours, __ATOMIC_RELEASE);
	if (read_only)
		mprotect(start, page, PROT_READ);
	return true;
}

/* Dynamic entries hold addresses that the loader of glibc has made absolute; other loaders leave them relative. */
static const void *pointer(const struct dl_phdr_info *object, uintptr_t value)
{
	return (const void *)(value < object->dlpi_addr ? value + object->dlpi_addr : value);
}

static int search_object(struct dl_phdr_info *object, size_t size, void *arg)
{
	struct search *search = arg;
	const ElfW(Dyn) *entry = NULL;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	const ElfW(Rela) *tables[2] = {0};
	size_t sizes[2] = {0};

	(void)size;
	if (!contains(object, search->inside, PT_LOAD))
		return 0;
	for (int i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
			entry = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
	for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
		switch (entry->d_tag) {
		case DT_SYMTAB:
			symbols = pointer(object, entry->d_un.d_ptr);
			break;
		case DT_STRTAB:
			names = pointer(object, entry->d_un.d_ptr);
			break;
		case DT_JMPREL:
			tables[0] = pointer(object, entry->d_un.d_ptr);
			break;
		case DT_PLTRELSZ:
			sizes[0] = entry->d_un.d_val;
			break;
		case DT_RELA:
			tables[1] = pointer(object, entry->d_un.d_ptr);
			break;
		case DT_RELASZ:
			sizes[1] = entry->d_un.d_val;
			break;
		}
	}
	if (symbols == NULL || names == NULL)
		return 1;
	for (int t = 0; t < 2; t++) {
		for (size_t i = 0; tables[t] != NULL && i < sizes[t] / sizeof(ElfW(Rela)); i++) {
			const ElfW(Rela) *rela = &tables[t][i];
			const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(rela->r_info)];

			if (!IS_FUNCTION_SLOT(ELF64_R_TYPE(rela->r_info)))
				continue;
			for (size_t c = 0; c < CALLS; c++)
				if (strcmp(names + symbol->st_name, calls[c].name) == 0 &&
				    replace(object, (void **)(object->dlpi_addr + rela->r_offset), calls[c].ours))
					search->slots[c]++;
		}
	}
	return 1;
}

static int redirect(uintptr_t inside)
{
	struct search search = { .inside = inside };

	dl_iterate_phdr(search_object, &search);
	for (size_t c = 0; c < CALLS; c++)
		if (search.slots[c] == 0)
			return -ENOENT;
	return 0;
}

#else

static int redirect(uintptr_t inside)
{
	(void)inside;
	return -ENOTSUP;
}

#endif

int spw_guard_memif(uint16_t port, void (*before)(void))
{
	if (port >= RTE_MAX_ETHPORTS)
		return -ENODEV;
	__atomic_store_n(&before_unmap, before, __ATOMIC_RELEASE);
	return redirect((uintptr_t)rte_eth_fp_ops[port].rx_pkt_burst);
}
