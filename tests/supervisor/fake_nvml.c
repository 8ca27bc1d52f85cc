/* A stand-in for NVIDIA's management library, for tests on machines without a GPU. It answers what FAKE_NVML says:
 * words as "gpus=8", or "ecc:2=7" for GPU 2. It proves how perdure handles answers, not how a driver behaves.
 *
 *   gpus=N            how many there are            ecc:I=N      uncorrected ECC errors
 *   lost:I=1          every call on it fails         pending:I=1  rows wait to be remapped
 *   failure:I=1       a row could not be remapped    slowed:I=B   bits of the reasons for slowed clocks
 *   xid:I=N           an Xid error that happens now  pid:I=N      a process that holds 2 GiB
 *   used:I=N          MiB that somebody holds        ecc_unsupported=1
 *   broken=1          the driver does not answer     hang=1       the first call never returns
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15, UNKNOWN = 999 };
enum { MAX_GPUS = 64 };
typedef unsigned long long u64;
typedef struct { int index; int told; } gpu;
typedef gpu *device;

static gpu gpus[MAX_GPUS];

static int asked(const char *name, int index, u64 *value) {
    char wanted[64];
    const char *all = getenv("FAKE_NVML");
    snprintf(wanted, sizeof wanted, index < 0 ? " %s=" : " %s:%d=", name, index);
    char text[1024];
    snprintf(text, sizeof text, " %s", all ? all : "");
    const char *at = strstr(text, wanted);
    *value = at ? strtoull(at + strlen(wanted), NULL, 10) : 0;
    return at != NULL;
}

static u64 value_of(const char *name, int index) { u64 v; asked(name, index, &v); return v; }
static int lost(device d) { return value_of("lost", d->index) ? LOST : OK; }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (value_of("hang", -1)) for (;;) pause();
    return value_of("broken", -1) ? UNKNOWN : OK;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "fake error"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = (unsigned)value_of("gpus", -1); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device *d) {
    if (i >= MAX_GPUS) return INVALID;
    gpus[i].index = (int)i;
    *d = &gpus[i];
    return lost(*d);
}
int nvmlDeviceGetIndex(device d, unsigned *i) { *i = (unsigned)d->index; return OK; }
int nvmlDeviceGetName(device d, char *name, unsigned n) { snprintf(name, n, "Fake GPU"); return lost(d); }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; } pci;
int nvmlDeviceGetPciInfo_v3(device d, pci *p) {
    memset(p, 0, sizeof *p);
    snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", 0x3b + d->index);
    return lost(d);
}
int nvmlDeviceGetTotalEccErrors(device d, int type, int counter, u64 *n) {
    if (value_of("ecc_unsupported", -1)) return NOT_SUPPORTED;
    *n = type == 1 && counter == 0 ? value_of("ecc", d->index) : 0;
    return lost(d);
}
int nvmlDeviceGetRemappedRows(device d, unsigned *c, unsigned *u, unsigned *pending, unsigned *failure) {
    *c = *u = 0;
    *pending = (unsigned)value_of("pending", d->index);
    *failure = (unsigned)value_of("failure", d->index);
    return lost(d);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device d, u64 *bits) { *bits = value_of("slowed", d->index); return lost(d); }
int nvmlDeviceGetClockInfo(device d, int type, unsigned *mhz) { (void)type; *mhz = 1200; return lost(d); }
int nvmlDeviceGetMaxClockInfo(device d, int type, unsigned *mhz) { (void)type; *mhz = 1980; return lost(d); }
typedef struct { u64 total, free, used; } memory;
int nvmlDeviceGetMemoryInfo(device d, memory *m) {
    m->total = 80ull << 30;
    m->used = (value_of("used", d->index) << 20) + (value_of("pid", d->index) ? 2ull << 30 : 0);
    m->free = m->total - m->used;
    return lost(d);
}
typedef struct { unsigned pid; u64 used; unsigned gi, ci; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *n, process *p) {
    u64 pid;
    if (!asked("pid", d->index, &pid)) { *n = 0; return lost(d); }
    if (*n < 1) { *n = 1; return TOO_SMALL; }
    memset(p, 0, sizeof *p);
    p->pid = (unsigned)pid;
    p->used = 2ull << 30;
    *n = 1;
    return lost(d);
}
typedef struct { device device; u64 type, data; unsigned gi, ci; } event;
int nvmlEventSetCreate(void **set) { *set = gpus; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(device d, u64 types, void *set) { (void)types; (void)set; return lost(d); }
int nvmlEventSetWait_v2(void *set, event *e, unsigned ms) {
    (void)set; (void)ms;
    for (int i = 0; i < MAX_GPUS; i++) {
        u64 xid;
        if (asked("xid", i, &xid) && !gpus[i].told) {
            gpus[i].told = 1;
            memset(e, 0, sizeof *e);
            e->device = &gpus[i];
            e->type = 8;
            e->data = xid;
            return OK;
        }
    }
    return TIMEOUT;
}
