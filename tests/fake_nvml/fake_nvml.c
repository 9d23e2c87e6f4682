/* A libnvidia-ml.so.1 without a GPU, for tests.
 *
 * What it answers is a `struct scenario` in a file (named by FAKE_NVML_SCENARIO) that both sides map: a test changes a
 * number and the next call sees it. The Python mirror of the structures is __init__.py beside this file.
 * Only what the tests and the benchmark's peer call is here; return codes are NVML's.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_GPUS = 16, MAX_MIG = 7, MAX_PROCESSES = 16, MAX_EVENTS = 64 };
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum { XID_CRITICAL_EVENT = 0x8 };
/* The groups of calls a device can refuse. */
enum call { HANDLE, IDENTITY, UTILIZATION, MEMORY, PROCESSES, POWER, ENERGY, TEMPERATURE, CLOCK, THROTTLE, ECC, EVENTS,
            OTHER, CALLS };

struct process { uint32_t pid, gpu_instance; uint64_t memory; };

struct device {
    char uuid[96], name[96];
    uint32_t result[CALLS];   /* what each group of calls returns */
    uint32_t process_count;
    uint64_t called[CALLS];   /* how often each group was called */
    uint64_t memory_total, memory_reserved, memory_used, energy_mj, throttle, ecc_uncorrected;
    uint32_t utilization_percent, power_mw, temperature_c, sm_clock_mhz;
    struct process processes[MAX_PROCESSES];
};

struct gpu {
    struct device device;
    uint32_t absent;          /* not even listed after the next nvmlInit */
    uint32_t lost;            /* fell off the bus: stays so for handles that saw it, until the next nvmlInit */
    uint32_t mig_enabled, mig_count;
    struct device mig[MAX_MIG];
};

struct event { uint32_t gpu, unused; uint64_t data; };

struct scenario {
    uint32_t init_result, gpu_count;
    uint64_t init_calls, event_count;
    char driver[80];
    uint32_t call_cost_us, unused;   /* spent in every device call, outside the interpreter's lock */
    struct event events[MAX_EVENTS];
    struct gpu gpus[MAX_GPUS];
};

struct handle { int gpu, mig, lost; };

static struct scenario *scenario;
static int references;
static int listed[MAX_GPUS], listed_count;                /* what nvmlInit enumerated */
static struct handle handles[MAX_GPUS][MAX_MIG + 1];
static int registered[MAX_GPUS];
static uint64_t events_read;

uint64_t fake_nvml_scenario_size(void) { return sizeof(struct scenario); }

/* Ends all sessions: a process may keep this library loaded from one test to the next. */
void fake_nvml_reset(void) { references = 0; }

static int map_scenario(void) {
    const char *path = getenv("FAKE_NVML_SCENARIO");
    if (scenario) munmap(scenario, sizeof *scenario);
    scenario = NULL;
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) return DRIVER_NOT_LOADED;
    void *memory = mmap(NULL, sizeof *scenario, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return DRIVER_NOT_LOADED;
    scenario = memory;
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (references > 0) { references++; return SUCCESS; }
    int result = map_scenario();
    if (result) return result;
    scenario->init_calls++;
    if (scenario->init_result) return scenario->init_result;
    references = 1;
    listed_count = 0;
    events_read = scenario->event_count;
    memset(registered, 0, sizeof registered);
    for (int gpu = 0; gpu < (int)scenario->gpu_count; gpu++) {
        for (int mig = 0; mig <= MAX_MIG; mig++) handles[gpu][mig] = (struct handle){gpu, mig, 0};
        if (!scenario->gpus[gpu].absent) listed[listed_count++] = gpu;
    }
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    if (references == 0) return UNINITIALIZED;
    references--;
    return SUCCESS;
}

const char *nvmlErrorString(int result) { (void)result; return "fake error"; }

static int text(char *to, unsigned length, const char *from) {
    if (strlen(from) >= length) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    return references ? text(version, length, scenario->driver) : UNINITIALIZED;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return references ? SUCCESS : UNINITIALIZED; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!references) return UNINITIALIZED;
    *count = listed_count;
    return SUCCESS;
}

static struct device *device_of(const struct handle *handle) {
    struct gpu *gpu = &scenario->gpus[handle->gpu];
    return handle->mig ? &gpu->mig[handle->mig - 1] : &gpu->device;
}

/* Counts the call and says whether it may go on. */
static int enter(struct handle *handle, enum call call, struct device **device) {
    if (!references) return UNINITIALIZED;
    if (!handle) return INVALID_ARGUMENT;
    *device = device_of(handle);
    (*device)->called[call]++;
    if (scenario->gpus[handle->gpu].lost) handles[handle->gpu][0].lost = 1;
    if (handles[handle->gpu][0].lost) return GPU_IS_LOST;
    if (scenario->call_cost_us) {
        struct timespec pause = {scenario->call_cost_us / 1000000, scenario->call_cost_us % 1000000 * 1000L};
        nanosleep(&pause, NULL);
    }
    return (*device)->result[call];
}

#define ENTER(call)                                         \
    struct device *device;                                  \
    int result = enter(handle, (call), &device);            \
    if (result) return result

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct handle **out) {
    if (!references) return UNINITIALIZED;
    if (index >= (unsigned)listed_count) return INVALID_ARGUMENT;
    struct handle *handle = &handles[listed[index]][0];
    ENTER(HANDLE);
    (void)device;
    *out = handle;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(struct handle *handle, unsigned *current, unsigned *pending) {
    ENTER(OTHER);
    (void)device;
    if (handle->mig) return INVALID_ARGUMENT;
    *current = *pending = scenario->gpus[handle->gpu].mig_enabled;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(struct handle *handle, unsigned *count) {
    ENTER(OTHER);
    (void)device;
    *count = MAX_MIG;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(struct handle *handle, unsigned index, struct handle **out) {
    ENTER(OTHER);
    (void)device;
    if (handle->mig || index >= MAX_MIG) return INVALID_ARGUMENT;
    if (index >= scenario->gpus[handle->gpu].mig_count) return NOT_FOUND;
    *out = &handles[handle->gpu][index + 1];
    return SUCCESS;
}
int nvmlDeviceIsMigDeviceHandle(struct handle *handle, unsigned *is_mig) { *is_mig = handle->mig > 0; return SUCCESS; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct handle *handle, struct handle **out) {
    *out = &handles[handle->gpu][0];
    return SUCCESS;
}

int nvmlDeviceGetUUID(struct handle *handle, char *uuid, unsigned length) {
    ENTER(IDENTITY);
    return text(uuid, length, device->uuid);
}
int nvmlDeviceGetName(struct handle *handle, char *name, unsigned length) {
    ENTER(IDENTITY);
    return text(name, length, device->name);
}

struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(struct handle *handle, struct utilization *out) {
    ENTER(UTILIZATION);
    if (handle->mig || scenario->gpus[handle->gpu].mig_enabled) return NOT_SUPPORTED;
    *out = (struct utilization){device->utilization_percent, device->utilization_percent / 2};
    return SUCCESS;
}

struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(struct handle *handle, struct memory *out) {
    ENTER(MEMORY);
    uint64_t used = device->memory_used + device->memory_reserved;
    *out = (struct memory){device->memory_total, device->memory_total - used, used};
    return SUCCESS;
}
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(struct handle *handle, struct memory_v2 *out) {
    ENTER(MEMORY);
    *out = (struct memory_v2){out->version, device->memory_total, device->memory_reserved,
                              device->memory_total - device->memory_reserved - device->memory_used, device->memory_used};
    return SUCCESS;
}

struct process_info { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(struct handle *handle, unsigned *count, struct process_info *out) {
    ENTER(PROCESSES);
    unsigned room = *count;
    *count = device->process_count;
    if (device->process_count == 0) return SUCCESS;
    if (room < device->process_count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < device->process_count; i++)
        out[i] = (struct process_info){device->processes[i].pid, device->processes[i].memory,
                                       device->processes[i].gpu_instance, 0};
    return SUCCESS;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(struct handle *handle, unsigned *count, struct process_info *out) {
    ENTER(OTHER);
    (void)device;
    (void)out;
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(struct handle *handle, unsigned *milliwatts) {
    ENTER(POWER);
    *milliwatts = device->power_mw;
    return SUCCESS;
}
int nvmlDeviceGetTotalEnergyConsumption(struct handle *handle, unsigned long long *millijoules) {
    ENTER(ENERGY);
    *millijoules = device->energy_mj;
    return SUCCESS;
}
int nvmlDeviceGetTemperature(struct handle *handle, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    ENTER(TEMPERATURE);
    *celsius = device->temperature_c;
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(struct handle *handle, unsigned type, unsigned *megahertz) {
    (void)type;
    ENTER(CLOCK);
    *megahertz = device->sm_clock_mhz;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(struct handle *handle, unsigned long long *reasons) {
    ENTER(THROTTLE);
    *reasons = device->throttle;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(struct handle *handle, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(handle, reasons);
}
int nvmlDeviceGetTotalEccErrors(struct handle *handle, unsigned type, unsigned counter, unsigned long long *count) {
    (void)counter;
    ENTER(ECC);
    *count = type == 1 ? device->ecc_uncorrected : 0;
    return SUCCESS;
}

int nvmlEventSetCreate(struct handle **set) {
    if (!references) return UNINITIALIZED;
    *set = &handles[0][0];   /* one set is all there is; the pointer only has to be non-null */
    return SUCCESS;
}
int nvmlEventSetFree(struct handle *set) { (void)set; return SUCCESS; }
int nvmlDeviceGetSupportedEventTypes(struct handle *handle, unsigned long long *types) {
    ENTER(EVENTS);
    (void)device;
    *types = XID_CRITICAL_EVENT;
    return SUCCESS;
}
int nvmlDeviceRegisterEvents(struct handle *handle, unsigned long long types, struct handle *set) {
    (void)set;
    ENTER(EVENTS);
    (void)device;
    if (types & ~(unsigned long long)XID_CRITICAL_EVENT) return NOT_SUPPORTED;
    registered[handle->gpu] = 1;
    return SUCCESS;
}
struct event_data { struct handle *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
int nvmlEventSetWait_v2(struct handle *set, struct event_data *out, unsigned timeout_ms) {
    (void)set;
    (void)timeout_ms;
    if (!references) return UNINITIALIZED;
    while (events_read < scenario->event_count) {
        struct event event = scenario->events[events_read++ % MAX_EVENTS];
        if (!registered[event.gpu]) continue;
        *out = (struct event_data){&handles[event.gpu][0], XID_CRITICAL_EVENT, event.data, 0xFFFFFFFF, 0xFFFFFFFF};
        return SUCCESS;
    }
    return TIMEOUT;
}

/* What only the benchmark's peer asks for; it must not have to handle refusals that a data-centre GPU does not make. */

int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

struct temperature { unsigned version, sensor; int celsius; };
int nvmlDeviceGetTemperatureV(struct handle *handle, struct temperature *out) {
    ENTER(TEMPERATURE);
    out->celsius = (int)device->temperature_c;
    return SUCCESS;
}
static int number(struct handle *handle, unsigned *out, unsigned value) {
    ENTER(OTHER);
    (void)device;
    *out = value;
    return SUCCESS;
}
int nvmlDeviceGetPowerManagementLimit(struct handle *handle, unsigned *out) { return number(handle, out, 700000); }
int nvmlDeviceGetFanSpeed(struct handle *handle, unsigned *out) { return number(handle, out, 0); }
int nvmlDeviceGetPcieThroughput(struct handle *handle, unsigned counter, unsigned *out) {
    (void)counter;
    return number(handle, out, 1000);
}
static int codec(struct handle *handle, unsigned *utilization, unsigned *period_us) {
    *period_us = 167000;
    return number(handle, utilization, 0);
}
int nvmlDeviceGetEncoderUtilization(struct handle *handle, unsigned *out, unsigned *us) { return codec(handle, out, us); }
int nvmlDeviceGetDecoderUtilization(struct handle *handle, unsigned *out, unsigned *us) { return codec(handle, out, us); }

struct field { uint32_t id, scope; int64_t timestamp, latency; uint32_t type, result; uint64_t value; };
int nvmlDeviceGetFieldValues(struct handle *handle, int count, struct field *out) {
    ENTER(OTHER);
    (void)device;
    for (int i = 0; i < count; i++) out[i].type = 3, out[i].result = SUCCESS, out[i].value = 0;
    return SUCCESS;
}
struct process_utilization { unsigned pid; unsigned long long timestamp; unsigned sm, memory, encoder, decoder; };
int nvmlDeviceGetProcessUtilization(struct handle *handle, struct process_utilization *out, unsigned *count,
                                    unsigned long long since) {
    (void)since;
    ENTER(OTHER);
    unsigned room = *count;
    *count = device->process_count;
    if (!out || room < *count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        out[i] = (struct process_utilization){device->processes[i].pid, 1, 50, 10, 0, 0};
    return SUCCESS;
}
struct confidential_memory { unsigned long long protected_kib, unprotected_kib; };
int nvmlDeviceGetConfComputeMemSizeInfo(struct handle *handle, struct confidential_memory *out) {
    ENTER(OTHER);
    *out = (struct confidential_memory){0, device->memory_total / 1024};
    return SUCCESS;
}
/* Its being there tells the peer which layout the process list has. */
int nvmlDeviceGetRunningProcessDetailList(struct handle *handle, void *list) {
    (void)handle;
    (void)list;
    return NOT_SUPPORTED;
}
