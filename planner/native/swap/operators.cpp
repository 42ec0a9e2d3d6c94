// What the operators do (docs/native.md has the protocol), and how they are described to ONNX
// Runtime.
#include "swap/operators.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <vector>

#include "swap/operator_shapes.h"
#include "pool/pools.h"
#include "swap/swaps.h"
#include "tensors.h"

namespace planner {
namespace {

struct Kernel {
  Tier& tier;
  const Settings& settings;
  bool cuda;
  std::vector<int64_t> dims;  // of the output, as the session knows them; -1 where it does not
};

// A call of an operator: its inputs and outputs.
struct Call {
  Kernel& kernel;
  ort::KernelContext* context;

  const ort::Value* input(size_t i) const {
    const ort::Value* found = nullptr;
    succeed(api->KernelContext_GetInput(context, i, &found));
    must(found, "input " + std::to_string(i) + " is missing");
    return found;
  }
  void* data(size_t i) const {
    void* found = nullptr;
    succeed(api->GetTensorMutableData(const_cast<ort::Value*>(input(i)), &found));
    return found;
  }
  ort::Value* output(const std::vector<int64_t>& dims, void*& data) const {
    ort::Value* made = nullptr;
    succeed(api->KernelContext_GetOutput(context, 0, dims.data(), dims.size(), &made));
    must(made, "the output is missing");
    succeed(api->GetTensorMutableData(made, &data));
    return made;
  }
  void* token() const {
    void* data = nullptr;
    output({1}, data);
    return data;
  }
  void* stream() const {
    void* found = nullptr;
    succeed(api->KernelContext_GetGPUComputeStream(context, &found));
    return found;
  }
};

size_t width_bytes(int type) {
  // Bytes of an element, by ONNXTensorElementDataType; 0: strings and types below a byte have no
  // slot.
  static const size_t widths[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2, 1, 1, 1, 1};
  bool known = type >= 0 && size_t(type) < sizeof widths / sizeof *widths && widths[type];
  must(known, "tensors of element type " + std::to_string(type) + " cannot be swapped");
  return widths[type];
}

struct Facts {
  int type = ort::kUndefined;
  std::vector<int64_t> dims;
  size_t bytes = 0;
};

Facts describe(const ort::Value* tensor) {
  ort::TypeAndShape* found = nullptr;
  succeed(api->GetTensorTypeAndShape(tensor, &found));
  Info info(found, api->ReleaseTensorTypeAndShapeInfo);
  size_t elements = 0;
  succeed(api->GetTensorShapeElementCount(found, &elements));
  return {type_of(found), dims_of(found), elements * width_bytes(type_of(found))};
}

std::unique_ptr<Swap> start(const Call& call, const Facts& facts, size_t capacity) {
  auto swap = std::make_unique<Swap>(call.kernel.tier, capacity, run_of(call.data(1)));
  swap->slot.settings = &call.kernel.settings;
  swap->slot.type = facts.type, swap->slot.dims = facts.dims, swap->slot.bytes = facts.bytes;
  return swap;
}

// Whether a tensor has its pages to itself, which matters to a file alone.
bool is_in_pages(const Kernel& kernel, const void* data) {
  HostPool* pool = kernel.settings.pool;
  return kernel.settings.disk && pool && has_pages(pool, data);
}

void swap_begin(const Call& call) {
  const void* r = call.token();
  int64_t left = begin_run(&call.kernel, r);
  must(left == 0, "an earlier run of this session failed while " + std::to_string(left) +
                      " of its swaps were under way; this run is refused, and the next is not. "
                      "Call planner.native.drain() after a run that failed");
  HostPool* pool = call.kernel.settings.pool;
  must(!pool || call.kernel.cuda || is_of(pool, r),
       "the session has planner.pool_bytes, and its memory is not of that pool: another session, or "
       "an allocator, was made at the same time, or session.use_env_allocators was taken back");
}

void copy_out(const Call& call, std::unique_ptr<Swap> swap, Hold held) {
  void* t = call.token();
  swap->held = std::move(held);
  swap->x = call.data(0);
  swap->slot.has_pages = is_in_pages(call.kernel, swap->x);
  call.kernel.tier.backend.begin_out(call.stream(), swap->slot, swap->x);
  name_swap(t, std::move(swap));
  counts.swaps_out++;
}

void swap_out(const Call& call) {
  Facts facts = describe(call.input(0));
  copy_out(call, start(call, facts, facts.bytes), Hold({call.input(0)}));
}

void store_to(const Call& call) {  // an output of the graph, which StoreOut writes
  void* h = nullptr;
  call.output(call.kernel.dims, h);
}

void store_out(const Call& call) {
  Facts facts = describe(call.input(0)), there = describe(call.input(2));
  must(facts.type == there.type && facts.dims == there.dims,
       "the attributes dtype and shape of StoreTo are not those of what is stored");
  auto swap = start(call, facts, 0);
  swap->slot.lent = call.data(2);
  copy_out(call, std::move(swap), Hold({call.input(0), call.input(2)}));
}

void swap_out_done(const Call& call) {
  auto swap = take_swap(call.data(0), "SwapOutDone");
  const void* x = call.data(1);
  must(x == swap->x || kTestBuild, "SwapOutDone reads another tensor than its SwapOut");
  call.kernel.tier.backend.end_out(call.stream(), swap->slot, x);
  swap->held.release();
  void* u = call.token();
  swap->finished = swap->slot.lent;  // of a StoreOut: nothing reads u
  if (!swap->finished) name_swap(u, std::move(swap));
}

void copy_in(const Call& call, std::unique_ptr<Swap> swap, const ort::Value* h = nullptr) {
  void* y = nullptr;
  ort::Value* made = call.output(swap->slot.dims, y);
  must(describe(made).type == swap->slot.type,
       "the attribute dtype is not the type that was swapped out");
  swap->held = h ? Hold({made, h}) : Hold({made});
  swap->slot.has_pages = is_in_pages(call.kernel, y);
  call.kernel.tier.backend.begin_in(call.stream(), swap->slot, y);
  name_swap(y, std::move(swap));
}

void swap_in(const Call& call) { copy_in(call, take_swap(call.data(0), "SwapIn")); }

void load_in(const Call& call) {
  auto swap = start(call, describe(call.input(0)), 0);
  swap->slot.lent = call.data(0);  // a feed or an output, which lives as long as the run
  copy_in(call, std::move(swap), call.input(0));
}

void swap_in_done(const Call& call) {
  const void* y = call.data(0);
  auto swap = take_swap(y, "SwapInDone");
  call.kernel.tier.backend.end_in(call.stream(), swap->slot, y);
  void* z = nullptr;
  call.output(swap->slot.dims, z);
  if (z != y) {  // z is an output of the graph, which has a buffer of its own
    call.kernel.tier.backend.copy(call.stream(), z, y, swap->slot.bytes);
    counts.copied_views++;
  }
  swap->finished = true;
  counts.swaps_in++;
}

// ------------------------------------------------------------------------------ description

struct Row {
  const char* name;
  void (*compute)(const Call&);
  void (*infer)(ort::ShapeContext*);
  std::vector<int> reads;
  int writes;
  bool aliases = false, makes_y = false, on_host = false;  // on_host: runs on the CPU everywhere
  int host_input = -1;                                     // which it reads where the host has it
};

const std::vector<Row>& rows() {
  constexpr int kAny = ort::kUndefined, kToken = ort::kUint8;
  static const auto* all = new std::vector<Row>{
      {"SwapBegin", swap_begin, infer_token, {kAny}, kToken},
      {"SwapOut", swap_out, infer_token, {kAny, kToken}, kToken},
      {"SwapOutDone", swap_out_done, infer_token, {kToken, kAny}, kToken},
      {"SwapIn", swap_in, infer_swap_in, {kToken}, kAny, false, true},
      {"SwapInDone", swap_in_done, infer_swap_in_done, {kAny}, kAny, true},
      {"LoadIn", load_in, infer_load_in, {kAny, kToken}, kAny, false, true, false, 0},
      {"StoreTo", store_to, infer_store_to, {}, kAny, false, false, true},
      {"StoreOut", store_out, infer_token, {kAny, kToken, kAny}, kToken, false, false, false, 2},
  };
  return *all;
}

bool is_first(const Row& row) { return &row == &rows().front(); }  // a session has one of these

struct Op : ort::CustomOp {
  const Row* row;
  const Settings* settings;
  bool cuda;
};
const Op& of(const ort::CustomOp* op) { return *static_cast<const Op*>(op); }

struct Instance {
  const Row& row;
  Kernel kernel;
  // Keeps the session's memory until its copies are done: x may lie in an earlier tensor's buffer,
  // which no Hold keeps. SwapBegin's alone.
  std::unique_ptr<ort::Allocator, void (*)(ort::Allocator*)> memory;
};

template <typename Work>
ort::Status* guarded(const Work& work) {
  try {
    must(!is_forked(), forked_text());
    work();
    return nullptr;
  } catch (const std::exception& error) {
    return api->CreateStatus(ort::kFail, error.what());
  }
}

std::vector<int64_t> told_dims(const ort::KernelInfo* kernel) {
  ort::TypeInfo* output = nullptr;
  succeed(api->KernelInfo_GetOutputTypeInfo(kernel, 0, &output));
  std::unique_ptr<ort::TypeInfo, void (*)(ort::TypeInfo*)> owned(output, api->ReleaseTypeInfo);
  const ort::TypeAndShape* tensor = nullptr;
  succeed(api->CastTypeInfoToTensorInfo(output, &tensor));
  must(tensor, "the output is not a tensor");
  return dims_of(tensor);
}

// A value_info that tells y's dims undoes set_unequal_dims.
void must_own_buffer(const std::vector<int64_t>& dims) {
  bool told = std::all_of(dims.begin(), dims.end(), [](int64_t dim) { return dim >= 0; });
  must(!told,
       "the file must not tell the dims of what SwapIn and LoadIn write (value_info): its buffer "
       "could then be another tensor's, which a run that fails frees while it is copied into");
}

bool is_plain(const Settings& all) {
  return !all.check && !all.link_mbps && !all.link_jitter_us && !all.disk;
}

ort::Status* create(const ort::CustomOp* op, const ort::Api*, const ort::KernelInfo* info,
                    void** made) {
  return guarded([&] {
    const Row& row = *of(op).row;
    auto dims = row.makes_y || row.on_host ? told_dims(info) : std::vector<int64_t>{};
    if (row.makes_y) must_own_buffer(dims);
    const Settings& settings = *of(op).settings;
    must(!of(op).cuda || is_plain(settings),
         "planner.check_swaps, planner.link_... and planner.disk_... are for the CPU alone");
    Tier& tier = settings.disk ? *settings.disk : tier_of(of(op).cuda);
    ort::Allocator* memory = nullptr;
    if (is_first(row)) succeed(api->KernelInfoGetAllocator(info, ort::kMemoryDefault, &memory));
    std::unique_ptr<Instance> instance(new Instance{
        row, Kernel{tier, settings, of(op).cuda, dims}, {memory, api->ReleaseAllocator}});
    // Last of what may fail: destroy() undoes it, which is not called for what create() refused.
    tier.slots.join(is_first(row) ? size_t(settings.disk_bytes) : 0);
    *made = instance.release();
  });
}

ort::Status* compute(void* instance, ort::KernelContext* context) {
  auto& self = *static_cast<Instance*>(instance);
  return guarded([&] { self.row.compute(Call{self.kernel, context}); });
}

void destroy(void* instance) {
  if (is_forked()) return;
  auto self = static_cast<Instance*>(instance);
  forget_session(&self->kernel);  // sessions that close while copies run wait for them
  Slots& slots = self->kernel.tier.slots;
  if (is_first(self->row))
    slots.end_session(&self->kernel, size_t(self->kernel.settings.disk_bytes));
  slots.leave();
  delete self;
}

size_t alias_first(int** in, int** out) {
  *in = static_cast<int*>(std::calloc(1, sizeof(int)));
  *out = static_cast<int*>(std::calloc(1, sizeof(int)));
  return *in && *out ? 1 : 0;
}

// Each session that is created asks for the names of its operators, before it takes its allocators.
const char* name_of(const ort::CustomOp* op) {
  if (of(op).settings->pool && is_first(*of(op).row)) serve_next(of(op).settings->pool);
  return of(op).row->name;
}

Op* describe_op(const Row& row, const Settings& settings, bool cuda) {
  auto op = new Op{};  // ONNX Runtime keeps it
  op->row = &row, op->settings = &settings, op->cuda = cuda;
  op->version = ort::kApiVersion;
  op->GetName = name_of;
  op->GetExecutionProviderType = [](const ort::CustomOp* op) {
    return of(op).cuda && !kTestBuild ? "CUDAExecutionProvider" : "CPUExecutionProvider";
  };
  op->GetInputTypeCount = [](const ort::CustomOp* op) { return of(op).row->reads.size(); };
  op->GetOutputTypeCount = [](const ort::CustomOp*) -> size_t { return 1; };
  op->GetInputType = [](const ort::CustomOp* op, size_t i) { return of(op).row->reads[i]; };
  op->GetOutputType = [](const ort::CustomOp* op, size_t) { return of(op).row->writes; };
  op->GetInputCharacteristic = [](const ort::CustomOp* op, size_t) {
    return of(op).row->compute == swap_begin ? ort::kOptional : ort::kRequired;
  };
  op->GetOutputCharacteristic = [](const ort::CustomOp*, size_t) { return ort::kRequired; };
  op->GetInputMemoryType = [](const ort::CustomOp* op, size_t i) {
    return of(op).row->host_input == int(i) ? ort::kMemoryCpuInput : ort::kMemoryDefault;
  };
  op->GetVariadicInputMinArity =
      op->GetVariadicOutputMinArity = [](const ort::CustomOp*) { return 1; };
  op->GetVariadicInputHomogeneity =
      op->GetVariadicOutputHomogeneity = [](const ort::CustomOp*) { return 0; };
  op->GetStartVersion = [](const ort::CustomOp*) { return 1; };
  op->GetEndVersion = [](const ort::CustomOp*) { return 1; };
  op->CreateKernelV2 = create;
  op->KernelComputeV2 = compute;
  op->KernelDestroy = destroy;
  op->InferOutputShapeFn = [](const ort::CustomOp* op, ort::ShapeContext* context) {
    return guarded([&] { of(op).row->infer(context); });
  };
  if (!row.aliases) return op;
  op->GetAliasMap = alias_first;
  op->ReleaseAliasMap = [](int* in, int* out) { std::free(in), std::free(out); };
  return op;
}

}  // namespace

ort::CustomOpDomain* domain_of(const Settings& settings) {
  static std::mutex mutex;
  using Key = std::tuple<HostPool*, bool, int64_t, int64_t, Tier*, int64_t>;
  static auto* made = new std::map<Key, ort::CustomOpDomain*>;
  std::lock_guard<std::mutex> lock(mutex);
  auto& domain = (*made)[{settings.pool, settings.check, settings.link_mbps,
                          settings.link_jitter_us, settings.disk, settings.disk_bytes}];
  if (domain) return domain;
  ort::CustomOpDomain* created = nullptr;
  succeed(api->CreateCustomOpDomain("planner.swap", &created));
  auto kept = new Settings(settings);
  for (bool cuda : {false, true}) {
    if (cuda ? !has_cuda_driver() : kTestBuild) continue;
    for (const Row& row : rows())
      if (!(row.on_host && cuda) || kTestBuild)
        succeed(api->CustomOpDomain_Add(created, describe_op(row, *kept, cuda)));
  }
  return domain = created;
}

}  // namespace planner
