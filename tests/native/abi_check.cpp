// Compiles where planner/native/ort_abi.h agrees with ONNX Runtime's header: slots, signatures,
// layouts, constants. An enumeration counts as an int and every structure as void, since ours have
// other names.
#include <onnxruntime_c_api.h>

#include <type_traits>

#include "ort_abi.h"

namespace {

namespace our = planner::ort;

template <typename T, typename = void>
struct Plain {
  using type = T;
};
template <typename T>
struct Plain<T, std::enable_if_t<std::is_enum_v<T> && !std::is_const_v<T>>> {
  using type = int;
};
template <typename T>
struct Plain<T, std::enable_if_t<std::is_class_v<T> && !std::is_const_v<T>>> {
  using type = void;
};
template <typename T>
struct Plain<const T> {
  using type = const typename Plain<T>::type;
};
template <typename T>
struct Plain<T*> {
  using type = typename Plain<T>::type*;
};
template <typename Result, typename... Arguments>
struct Plain<Result (*)(Arguments...)> {
  using type = typename Plain<Result>::type (*)(typename Plain<Arguments>::type...);
};
template <typename Result, typename... Arguments>
struct Plain<Result (*)(Arguments...) noexcept> : Plain<Result (*)(Arguments...)> {};

template <typename Ours, typename Theirs>
constexpr bool agree = std::is_same_v<typename Plain<Ours>::type, typename Plain<Theirs>::type>;

#define CHECK_SLOT(name, slot, result, arguments)                                  \
  static_assert(offsetof(OrtApi, name) == slot * sizeof(void*), "slot of " #name); \
  static_assert(agree<decltype(our::Functions::name), decltype(OrtApi::name)>,     \
                "signature of " #name);
PLANNER_ORT_SLOTS(CHECK_SLOT)

#define CHECK_MEMBER(ours, theirs, name)                                                 \
  static_assert(offsetof(our::ours, name) == offsetof(theirs, name), "place of " #name); \
  static_assert(agree<decltype(our::ours::name), decltype(theirs::name)>, "type of " #name);
#define CHECK_OP(name) CHECK_MEMBER(CustomOp, OrtCustomOp, name)
CHECK_OP(version)
CHECK_OP(CreateKernel)
CHECK_OP(GetName)
CHECK_OP(GetExecutionProviderType)
CHECK_OP(GetInputType)
CHECK_OP(GetInputTypeCount)
CHECK_OP(GetOutputType)
CHECK_OP(GetOutputTypeCount)
CHECK_OP(KernelCompute)
CHECK_OP(KernelDestroy) CHECK_OP(GetInputCharacteristic) CHECK_OP(GetOutputCharacteristic)
    CHECK_OP(GetInputMemoryType) CHECK_OP(GetVariadicInputMinArity)
        CHECK_OP(GetVariadicInputHomogeneity) CHECK_OP(GetVariadicOutputMinArity)
            CHECK_OP(GetVariadicOutputHomogeneity) CHECK_OP(CreateKernelV2)
                CHECK_OP(KernelComputeV2) CHECK_OP(InferOutputShapeFn) CHECK_OP(GetStartVersion)
                    CHECK_OP(GetEndVersion) CHECK_OP(GetMayInplace) CHECK_OP(ReleaseMayInplace)
                        CHECK_OP(GetAliasMap)
                            CHECK_OP(ReleaseAliasMap) static_assert(sizeof(our::CustomOp) >=
                                                                    sizeof(OrtCustomOp));

#define CHECK_ALLOCATOR(name) CHECK_MEMBER(Allocator, OrtAllocator, name)
CHECK_ALLOCATOR(version)
CHECK_ALLOCATOR(Alloc)
CHECK_ALLOCATOR(Free)
CHECK_ALLOCATOR(Info)
CHECK_ALLOCATOR(Reserve) static_assert(sizeof(our::Allocator) >= sizeof(OrtAllocator));
CHECK_MEMBER(ApiBase, OrtApiBase, GetApi)
CHECK_MEMBER(ApiBase, OrtApiBase, GetVersionString)

static_assert(our::kApiVersion <= ORT_API_VERSION);
static_assert(our::kFail == ORT_FAIL && our::kInvalidArgument == ORT_INVALID_ARGUMENT);
static_assert(our::kUndefined == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED);
static_assert(our::kUint8 == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8);
static_assert(our::kFloat == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT &&
              our::kDouble == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE &&
              our::kInt32 == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 &&
              our::kInt64 == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 &&
              our::kBool == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL);
static_assert(our::kRequired == INPUT_OUTPUT_REQUIRED && our::kOptional == INPUT_OUTPUT_OPTIONAL &&
              our::kVariadic == INPUT_OUTPUT_VARIADIC);
static_assert(our::kMemoryCpuInput == OrtMemTypeCPUInput &&
              our::kMemoryDefault == OrtMemTypeDefault);
static_assert(our::kDeviceAllocator == OrtDeviceAllocator);
static_assert(our::kAttributeInt == ORT_OP_ATTR_INT && our::kAttributeInts == ORT_OP_ATTR_INTS &&
              our::kAttributeString == ORT_OP_ATTR_STRING);
static_assert(our::kSequence == ONNX_TYPE_SEQUENCE &&
              our::kLogWarning == ORT_LOGGING_LEVEL_WARNING);

}  // namespace
