/* A Vulkan driver that forwards to another one and counts the device memory that goes through it.
 *
 * The Vulkan loader loads this library, which loads the driver that PLANNER_VK_DRIVER names and
 * hands out its functions. A few of them are wrapped on the way: those that take and give back
 * memory and buffers, submit work, and make a device. ONNX Runtime's WebGPU provider keeps
 * tensors in storage buffers and passes data to and from the host in others, so the two are counted
 * apart. A cap refuses storage buffers as a device does whose memory is full.
 *
 * The structures below are the beginnings of Vulkan's own, so that no headers are needed. One real
 * driver is served, whose functions are the same for all of its devices.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, OUT_OF_HOST_MEMORY = -1, OUT_OF_DEVICE_MEMORY = -2 };
enum { STORAGE_BUFFER = 0x20 };

typedef void (*Function)(void);
typedef Function (*Lookup)(void *owner, const char *name);

typedef struct {
    int32_t type;
    const void *next;
    uint64_t size;
} MemoryInfo;

typedef struct {
    int32_t type;
    const void *next;
    uint32_t flags;
    uint64_t size;
    uint32_t usage;
} BufferInfo;

/* The real driver's functions, each known once the loader has asked for it. */
static struct {
    Lookup instance, physical_device, device;
    int32_t (*negotiate)(uint32_t *version);
    int32_t (*create_device)(void *, const void *, const void *, void **);
    int32_t (*allocate)(void *, const MemoryInfo *, const void *, uint64_t *);
    void (*free)(void *, uint64_t, const void *);
    int32_t (*create_buffer)(void *, const BufferInfo *, const void *, uint64_t *);
    void (*destroy_buffer)(void *, uint64_t, const void *);
    int32_t (*submit)(void *, uint32_t, const void *, uint64_t);
    int32_t (*submit2)(void *, uint32_t, const void *, uint64_t);
} real;

/* In the order of DriverStats in counting.py. A peak follows its `now`. */
enum {
    MEMORY, MEMORY_PEAK, STORAGE, STORAGE_PEAK, OTHER, OTHER_PEAK,
    BUFFERS, REFUSED, SUBMITS, DEVICES, COUNTS
};
static uint64_t counts[COUNTS];
static uint64_t cap; /* on STORAGE; 0 for none */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of all that is counted */

/* What is held: the size behind each handle, in chains, so that there is room for any number. */
typedef struct Held {
    uint64_t handle, size;
    int what;
    struct Held *next;
} Held;
static Held *table[1 << 16];

static Held **chain(uint64_t handle) { return &table[(handle * 0x9E3779B97F4A7C15u) >> 48]; }

/* Count one object; 0 where the host has no memory left to remember it. */
static int hold(uint64_t handle, uint64_t size, int what) {
    Held *held = malloc(sizeof *held);
    if (!held) return 0;
    *held = (Held){handle, size, what, *chain(handle)};
    *chain(handle) = held;
    counts[what] += size;
    if (counts[what] > counts[what + 1]) counts[what + 1] = counts[what];
    return 1;
}

/* Memory and buffers may share a number: `memory` tells which of them is given back. */
static void release(uint64_t handle, int memory) {
    for (Held **link = chain(handle); *link; link = &(*link)->next) {
        Held *held = *link;
        if (held->handle != handle || (held->what == MEMORY) != memory) continue;
        counts[held->what] -= held->size;
        *link = held->next;
        free(held);
        return;
    }
}

static int32_t allocate(void *device, const MemoryInfo *info, const void *host, uint64_t *memory) {
    pthread_mutex_lock(&mutex);
    int32_t result = real.allocate(device, info, host, memory);
    if (result == SUCCESS && !hold(*memory, info->size, MEMORY)) {
        real.free(device, *memory, host);
        result = OUT_OF_HOST_MEMORY;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

static void free_memory(void *device, uint64_t memory, const void *host) {
    pthread_mutex_lock(&mutex);
    real.free(device, memory, host);
    release(memory, 1);
    pthread_mutex_unlock(&mutex);
}

static int32_t create_buffer(void *device, const BufferInfo *info, const void *host,
                             uint64_t *buffer) {
    int what = info->usage & STORAGE_BUFFER ? STORAGE : OTHER;
    int32_t result;
    pthread_mutex_lock(&mutex);
    if (what == STORAGE && cap && (info->size > cap || counts[STORAGE] > cap - info->size)) {
        counts[REFUSED]++;
        result = OUT_OF_DEVICE_MEMORY;
    } else {
        result = real.create_buffer(device, info, host, buffer);
        if (result == SUCCESS && !hold(*buffer, info->size, what)) {
            real.destroy_buffer(device, *buffer, host);
            result = OUT_OF_HOST_MEMORY;
        }
        if (result == SUCCESS) counts[BUFFERS]++;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

static void destroy_buffer(void *device, uint64_t buffer, const void *host) {
    pthread_mutex_lock(&mutex);
    real.destroy_buffer(device, buffer, host);
    release(buffer, 0);
    pthread_mutex_unlock(&mutex);
}

static void count(int what) {
    pthread_mutex_lock(&mutex);
    counts[what]++;
    pthread_mutex_unlock(&mutex);
}

static int32_t submit(void *queue, uint32_t batches, const void *work, uint64_t fence) {
    count(SUBMITS);
    return real.submit(queue, batches, work, fence);
}

static int32_t submit2(void *queue, uint32_t batches, const void *work, uint64_t fence) {
    count(SUBMITS);
    return real.submit2(queue, batches, work, fence);
}

static int32_t create_device(void *physical, const void *info, const void *host, void **device) {
    count(DEVICES);
    return real.create_device(physical, info, host, device);
}

/* The wrapper of a function that is counted; any other function as it is. */
static Function wrapped(const char *name, Function function);
Function vk_icdGetInstanceProcAddr(void *instance, const char *name);

static Function device_function(void *device, const char *name) {
    return wrapped(name, real.device(device, name));
}

static Function wrapped(const char *name, Function function) {
#define WRAP(vulkan, kept, ours) \
    if (!strcmp(name, vulkan)) { real.kept = (void *)function; return (Function)ours; }
    if (!function) return NULL;
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (Function)vk_icdGetInstanceProcAddr;
    WRAP("vkGetDeviceProcAddr", device, device_function)
    WRAP("vkCreateDevice", create_device, create_device)
    WRAP("vkAllocateMemory", allocate, allocate)
    WRAP("vkFreeMemory", free, free_memory)
    WRAP("vkCreateBuffer", create_buffer, create_buffer)
    WRAP("vkDestroyBuffer", destroy_buffer, destroy_buffer)
    WRAP("vkQueueSubmit", submit, submit)
    WRAP("vkQueueSubmit2", submit2, submit2)
    WRAP("vkQueueSubmit2KHR", submit2, submit2)
    return function;
}

static void load(void) {
    const char *path = getenv("PLANNER_VK_DRIVER");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "planner: no Vulkan driver: %s\n", path ? dlerror() : "PLANNER_VK_DRIVER");
        return;
    }
    real.instance = (Lookup)dlsym(library, "vk_icdGetInstanceProcAddr");
    real.physical_device = (Lookup)dlsym(library, "vk_icdGetPhysicalDeviceProcAddr");
    real.negotiate = (void *)dlsym(library, "vk_icdNegotiateLoaderICDInterfaceVersion");
}

static void load_once(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
}

/* What the Vulkan loader looks for in a driver. */

int32_t vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
    load_once();
    return real.negotiate ? real.negotiate(version) : -3; /* VK_ERROR_INITIALIZATION_FAILED */
}

Function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    load_once();
    return real.instance ? wrapped(name, real.instance(instance, name)) : NULL;
}

Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name) {
    load_once();
    return real.physical_device ? real.physical_device(instance, name) : NULL;
}

/* What counting.py calls. */

void planner_vk_stats(uint64_t *values) {
    pthread_mutex_lock(&mutex);
    memcpy(values, counts, sizeof counts);
    pthread_mutex_unlock(&mutex);
}

void planner_vk_reset_peak(void) {
    pthread_mutex_lock(&mutex);
    for (int what = MEMORY; what <= OTHER; what += 2) counts[what + 1] = counts[what];
    pthread_mutex_unlock(&mutex);
}

void planner_vk_cap(uint64_t bytes) {
    pthread_mutex_lock(&mutex);
    cap = bytes;
    pthread_mutex_unlock(&mutex);
}
