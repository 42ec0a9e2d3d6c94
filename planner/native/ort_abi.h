// The part of ONNX Runtime's C interface that the library uses, declared here.
//
// ONNX Runtime only ever appends to its table of functions, so that a slot's number never changes.
// The numbers and signatures are those of onnxruntime_c_api.h; tests/native/abi_check.cpp compares
// them with a header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace planner::ort {

constexpr uint32_t kApiVersion =
    18;  // the first with alias maps and Reserve, which the library needs

struct Status;
struct Value;
struct TypeAndShape;
struct TypeInfo;
struct Env;
struct MemoryInfo;
struct SessionOptions;
struct CustomOpDomain;
struct KernelContext;
struct KernelInfo;
struct ShapeContext;
struct Attribute;
struct Api;
struct CustomOp;
struct Allocator;

// Enumerations of the C interface, which are passed as int.
constexpr int kFail = 1, kInvalidArgument = 2;
constexpr int kUndefined = 0, kFloat = 1, kUint8 = 2, kInt32 = 6, kInt64 = 7, kBool = 9;
constexpr int kFloat16 = 10, kDouble = 11, kBfloat16 = 16;
constexpr int kRequired = 0, kOptional = 1, kVariadic = 2;
constexpr int kMemoryCpuInput = -2, kMemoryDefault = 0, kDeviceAllocator = 0;
constexpr int kAttributeInt = 1, kAttributeInts = 2, kAttributeString = 5;
constexpr int kSequence = 2, kLogWarning = 2;

// X(name, slot, result, arguments)
#define PLANNER_ORT_SLOTS(X)                                                                   \
  X(CreateStatus, 0, Status*, (int, const char*))                                              \
  X(GetErrorMessage, 2, const char*, (const Status*))                                          \
  X(CreateEnv, 3, Status*, (int, const char*, Env**))                                          \
  X(DisableMemPattern, 17, Status*, (SessionOptions*))                                         \
  X(CreateCustomOpDomain, 26, Status*, (const char*, CustomOpDomain**))                        \
  X(CustomOpDomain_Add, 27, Status*, (CustomOpDomain*, const CustomOp*))                       \
  X(AddCustomOpDomain, 28, Status*, (SessionOptions*, CustomOpDomain*))                        \
  X(GetTensorMutableData, 51, Status*, (Value*, void**))                                       \
  X(CreateTensorTypeAndShapeInfo, 57, Status*, (TypeAndShape**))                               \
  X(SetTensorElementType, 58, Status*, (TypeAndShape*, int))                                   \
  X(SetDimensions, 59, Status*, (TypeAndShape*, const int64_t*, size_t))                       \
  X(GetTensorElementType, 60, Status*, (const TypeAndShape*, int*))                            \
  X(GetDimensionsCount, 61, Status*, (const TypeAndShape*, size_t*))                           \
  X(GetDimensions, 62, Status*, (const TypeAndShape*, int64_t*, size_t))                       \
  X(GetTensorShapeElementCount, 64, Status*, (const TypeAndShape*, size_t*))                   \
  X(CastTypeInfoToTensorInfo, 55, Status*, (const TypeInfo*, const TypeAndShape**))            \
  X(GetTensorTypeAndShape, 65, Status*, (const Value*, TypeAndShape**))                        \
  X(CreateMemoryInfo, 68, Status*, (const char*, int, int, int, MemoryInfo**))                 \
  X(CreateValue, 82, Status*, (const Value* const*, size_t, int, Value**))                     \
  X(KernelInfoGetAttribute_string, 87, Status*,                                                \
    (const KernelInfo*, const char*, char*, size_t*))                                          \
  X(KernelContext_GetInputCount, 88, Status*, (const KernelContext*, size_t*))                 \
  X(KernelContext_GetOutputCount, 89, Status*, (const KernelContext*, size_t*))                \
  X(KernelContext_GetInput, 90, Status*, (const KernelContext*, size_t, const Value**))        \
  X(KernelContext_GetOutput, 91, Status*,                                                      \
    (KernelContext*, size_t, const int64_t*, size_t, Value**))                                 \
  X(ReleaseStatus, 93, void, (Status*))                                                        \
  X(ReleaseValue, 96, void, (Value*))                                                          \
  X(ReleaseTypeInfo, 98, void, (TypeInfo*))                                                    \
  X(ReleaseTensorTypeAndShapeInfo, 99, void, (TypeAndShape*))                                  \
  X(AddSessionConfigEntry, 130, Status*, (SessionOptions*, const char*, const char*))          \
  X(ReleaseAllocator, 132, void, (Allocator*))                                                 \
  X(RegisterAllocator, 176, Status*, (Env*, Allocator*))                                       \
  X(KernelContext_GetGPUComputeStream, 193, Status*, (const KernelContext*, void**))           \
  X(HasSessionConfigEntry, 237, Status*, (const SessionOptions*, const char*, int*))           \
  X(GetSessionConfigEntry, 238, Status*, (const SessionOptions*, const char*, char*, size_t*)) \
  X(KernelInfo_GetOutputTypeInfo, 235, Status*, (const KernelInfo*, size_t, TypeInfo**))       \
  X(ShapeInferContext_GetInputCount, 267, Status*, (const ShapeContext*, size_t*))             \
  X(ShapeInferContext_GetInputTypeShape, 268, Status*,                                         \
    (const ShapeContext*, size_t, TypeAndShape**))                                             \
  X(ShapeInferContext_GetAttribute, 269, Status*,                                              \
    (const ShapeContext*, const char*, const Attribute**))                                     \
  X(ShapeInferContext_SetOutputTypeShape, 270, Status*,                                        \
    (const ShapeContext*, size_t, const TypeAndShape*))                                        \
  X(SetSymbolicDimensions, 271, Status*, (TypeAndShape*, const char**, size_t))                \
  X(ReadOpAttr, 272, Status*, (const Attribute*, int, void*, size_t, size_t*))                 \
  X(KernelContext_ParallelFor, 274, Status*,                                                   \
    (const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*))                    \
  X(KernelInfoGetAllocator, 278, Status*, (const KernelInfo*, int, Allocator**))

// The functions above, read from the table that ONNX Runtime gives.
struct Functions {
#define PLANNER_ORT_MEMBER(name, slot, result, arguments) result(*name) arguments;
  PLANNER_ORT_SLOTS(PLANNER_ORT_MEMBER)
#undef PLANNER_ORT_MEMBER

  explicit Functions(const Api* table) {
    auto slots = reinterpret_cast<void* const*>(table);
#define PLANNER_ORT_READ(name, slot, result, arguments) \
  name = reinterpret_cast<result(*) arguments>(slots[slot]);
    PLANNER_ORT_SLOTS(PLANNER_ORT_READ)
#undef PLANNER_ORT_READ
  }
};

struct ApiBase {
  const Api* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

struct CustomOp {
  uint32_t version;
  void* (*CreateKernel)(const CustomOp*, const Api*, const KernelInfo*);
  const char* (*GetName)(const CustomOp*);
  const char* (*GetExecutionProviderType)(const CustomOp*);
  int (*GetInputType)(const CustomOp*, size_t);
  size_t (*GetInputTypeCount)(const CustomOp*);
  int (*GetOutputType)(const CustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const CustomOp*);
  void (*KernelCompute)(void*, KernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const CustomOp*, size_t);
  int (*GetOutputCharacteristic)(const CustomOp*, size_t);
  int (*GetInputMemoryType)(const CustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const CustomOp*);
  int (*GetVariadicInputHomogeneity)(const CustomOp*);
  int (*GetVariadicOutputMinArity)(const CustomOp*);
  int (*GetVariadicOutputHomogeneity)(const CustomOp*);
  Status* (*CreateKernelV2)(const CustomOp*, const Api*, const KernelInfo*, void**);
  Status* (*KernelComputeV2)(void*, KernelContext*);
  Status* (*InferOutputShapeFn)(const CustomOp*, ShapeContext*);
  int (*GetStartVersion)(const CustomOp*);
  int (*GetEndVersion)(const CustomOp*);
  size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

// Up to the last member of API 18; what later versions append is not read in an allocator of
// version 18.
struct Allocator {
  uint32_t version;
  void* (*Alloc)(Allocator*, size_t);
  void (*Free)(Allocator*, void*);
  const MemoryInfo* (*Info)(const Allocator*);
  void* (*Reserve)(Allocator*, size_t);
  void* later[4];  // GetStats, AllocOnStream, Shrink and one more, all null
};

}  // namespace planner::ort
