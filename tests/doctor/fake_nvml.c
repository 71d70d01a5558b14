/* Stands for the driver's libnvidia-ml.so.1 where there is no GPU: FAKE_NVML says what is wrong with its two GPUs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char *word) {
    const char *wanted = getenv("FAKE_NVML");
    return wanted && strcmp(wanted, word) == 0;
}
static const int gpus[2] = {0, 1};
#define SECOND(device) (*(const int *)(device) == 1)

int nvmlInitWithFlags(unsigned flags) {
    if (is("hang")) sleep(600);
    return is("mismatch") ? 18 : 0;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "GPU is lost"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.95.05"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = is("one") ? 1 : 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, const int **device) {
    *device = &gpus[index];
    return is("lost") && index == 1 ? 15 : 0;
}
int nvmlDeviceGetName(const void *device, char *text, unsigned size) {
    snprintf(text, size, is("mixed") && SECOND(device) ? "Slow GPU" : "Fake GPU");
    return 0;
}
int nvmlDeviceGetTotalEccErrors(const void *device, int type, int counter, unsigned long long *count) {
    *count = is("ecc") && SECOND(device) && type == 1 && counter == 0 ? 3 : 0;
    return is("no-ecc") ? 3 : 0;
}
int nvmlDeviceGetRetiredPagesPendingStatus(const void *device, unsigned *pending) {
    *pending = is("pages") && SECOND(device);
    return is("no-ecc") ? 3 : 0;
}
int nvmlDeviceGetRemappedRows(const void *device, unsigned *corrected, unsigned *not_, unsigned *pending, unsigned *failed) {
    *corrected = *not_ = 0;
    *pending = is("row-pending") && SECOND(device);
    *failed = is("row-failed") && SECOND(device);
    return is("pages") || is("no-ecc") ? 3 : 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(const void *device, unsigned long long *reasons) {
    *reasons = SECOND(device) ? is("hot") ? 64 | 8 : is("power-capped") ? 4 : is("idle") ? 1 : 0 : 0;
    return 0;
}
int nvmlDeviceGetTemperature(const void *device, int sensor, unsigned *degrees) {
    *degrees = 40;
    return is("falls") && SECOND(device) ? 15 : 0;
}
int nvmlDeviceGetUUID(const void *device, char *text, unsigned size) {
    snprintf(text, size, SECOND(device) ? "GPU-bbbb-2222" : "GPU-aaaa-1111");
    return 0;
}
static const int part = 1; /* of the second GPU */
int nvmlDeviceGetHandleByUUID(const char *uuid, const int **device) {
    *device = &part;
    return strcmp(uuid, "MIG-cccc-3333") == 0 ? 0 : 6;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const void *device, const int **whole) {
    *whole = &gpus[*(const int *)device];
    return 0;
}
typedef struct { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char id[32]; } pci;
int nvmlDeviceGetPciInfo_v3(const void *device, pci *info) {
    memset(info, 0, sizeof *info);
    info->bus = SECOND(device) ? 0x3b : 0x1a;
    return 0;
}
int nvmlDeviceGetPersistenceMode(const void *device, unsigned *mode) { *mode = !is("no-persistence"); return 0; }
