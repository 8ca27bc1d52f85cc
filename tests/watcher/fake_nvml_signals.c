/* The stand-in of the supervisor's tests with what the watcher asks besides:
 *
 *   hot:I=C               temperature              power:I=W       watts             busy:I=P   utilization, per cent
 *   generation:I=G        of the PCIe link, of 5   width:I=W       of it, of 16
 *   links:I=N             NVLinks that are up, of 4; none where it is not said
 */
#include "../supervisor/fake_nvml.c"

typedef struct { unsigned gpu, memory; } utilization;
static int number(device d, const char *name, unsigned usual, unsigned *value) {
    u64 said;
    *value = asked(name, d->index, &said) ? (unsigned)said : usual;
    return lost(d);
}
int nvmlDeviceGetTemperature(device d, int sensor, unsigned *c) { (void)sensor; return number(d, "hot", 41, c); }
int nvmlDeviceGetPowerUsage(device d, unsigned *mw) { int code = number(d, "power", 300, mw); *mw *= 1000; return code; }
int nvmlDeviceGetUtilizationRates(device d, utilization *u) { u->memory = 0; return number(d, "busy", 99, &u->gpu); }
int nvmlDeviceGetCurrPcieLinkGeneration(device d, unsigned *n) { return number(d, "generation", 5, n); }
int nvmlDeviceGetMaxPcieLinkGeneration(device d, unsigned *n) { *n = 5; return lost(d); }
int nvmlDeviceGetCurrPcieLinkWidth(device d, unsigned *n) { return number(d, "width", 16, n); }
int nvmlDeviceGetMaxPcieLinkWidth(device d, unsigned *n) { *n = 16; return lost(d); }
int nvmlDeviceGetNvLinkState(device d, unsigned link, unsigned *up) {
    u64 said;
    if (!asked("links", d->index, &said)) return NOT_SUPPORTED;
    if (link >= 4) return INVALID;
    *up = link < said;
    return lost(d);
}
