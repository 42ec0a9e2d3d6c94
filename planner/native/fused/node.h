// What the operators of planner.fused ask ONNX Runtime for, and how they fail.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "fused/run.h"
#include "swap/slots.h"
#include "tensors.h"

namespace planner::fused {

inline void check(bool holds, const std::string& otherwise) {
  if (!holds) throw std::runtime_error("planner.fused: " + otherwise);
}

template <typename Work>
ort::Status* guarded(const Work& work) {
  try {
    check(!is_forked(), forked_text());
    work();
    return nullptr;
  } catch (const std::exception& error) {
    return api->CreateStatus(ort::kFail, error.what());
  }
}

inline std::string text_of(const ort::KernelInfo* info, const char* attribute) {
  size_t size = 0;
  ort::Status* asked = api->KernelInfoGetAttribute_string(info, attribute, nullptr, &size);
  if (asked) api->ReleaseStatus(asked);  // what the size is, it says by failing
  std::string text(size, '\0');
  succeed(api->KernelInfoGetAttribute_string(info, attribute, text.data(), &size));
  return text.c_str();
}

inline std::string text_of(ort::ShapeContext* context, const char* attribute) {
  const ort::Attribute* found = nullptr;
  succeed(api->ShapeInferContext_GetAttribute(context, attribute, &found));
  size_t size = 0;
  ort::Status* asked = api->ReadOpAttr(found, ort::kAttributeString, nullptr, 0, &size);
  if (asked) api->ReleaseStatus(asked);
  std::string text(size + 1, '\0');
  succeed(api->ReadOpAttr(found, ort::kAttributeString, text.data(), size, &size));
  return text.c_str();
}

struct Value {
  Dims dims;
  int type = ort::kUndefined;
  void* data = nullptr;
};

inline void* data_of(const ort::Value* value) {
  void* data = nullptr;
  succeed(api->GetTensorMutableData(const_cast<ort::Value*>(value), &data));
  return data;
}

inline Value input_value(ort::KernelContext* context, size_t i) {
  const ort::Value* value = nullptr;
  succeed(api->KernelContext_GetInput(context, i, &value));
  check(value, "input " + std::to_string(i) + " is missing");
  ort::TypeAndShape* found = nullptr;
  succeed(api->GetTensorTypeAndShape(value, &found));
  Info info(found, api->ReleaseTensorTypeAndShapeInfo);
  return {planner::dims_of(found), type_of(found), data_of(value)};
}

inline void* output_of(ort::KernelContext* context, size_t i, const Dims& dims) {
  ort::Value* value = nullptr;
  succeed(api->KernelContext_GetOutput(context, i, dims.data(), dims.size(), &value));
  check(value, "output " + std::to_string(i) + " is left out");
  return data_of(value);
}

// On the session's threads, through which no exception may pass.
inline Parallel parallel_of(ort::KernelContext* context) {
  return [context](size_t tasks, const std::function<void(size_t)>& work) {
    struct Call {
      const std::function<void(size_t)>& work;
      std::atomic<bool> failed{false};
    } call{work};
    auto one = [](void* data, size_t i) {
      Call& call = *static_cast<Call*>(data);
      try {
        call.work(i);
      } catch (const std::exception&) {
        call.failed = true;
      }
    };
    if (tasks == 1) one(&call, 0);
    else succeed(api->KernelContext_ParallelFor(context, one, tasks, 0, &call));
    check(!call.failed, "no memory for the values of a thread");
  };
}

}  // namespace planner::fused
