// A device of pretence: tensors that lie on a device of their own (PyTorch's PrivateUse1) in memory of the host, whose
// operations are the CPU's. It behaves as an accelerator does where programs notice: tensors of two devices do not
// meet, reading a result is counted as waiting, and an index out of range loses the device for good.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_set>
#include <vector>

namespace {

constexpr auto kind = c10::DeviceType::PrivateUse1;
std::atomic<int64_t> waits{0};
std::atomic<bool> lost{false};

void must_live() {
    if (lost)
        throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 710, "pretend error: device-side assert triggered");
}

// Memory

struct Memory final : c10::Allocator {
    static void release(void* address) { std::free(address); }
    c10::DataPtr allocate(size_t bytes) override {
        void* address = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
        return {address, address, &release, c10::Device(kind, 0)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

Memory memory;
REGISTER_ALLOCATOR(kind, &memory);

// What PyTorch asks of a device

struct Guard final : c10::impl::DeviceGuardImplInterface {
    static constexpr c10::DeviceType static_type = kind;
    c10::Device only() const { return {kind, 0}; }
    c10::Stream stream() const { return c10::Stream(c10::Stream::DEFAULT, only()); }
    c10::DeviceType type() const override { return kind; }
    c10::Device exchangeDevice(c10::Device) const override { return only(); }
    c10::Device getDevice() const override { return only(); }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::Stream getStream(c10::Device) const override { return stream(); }
    c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
    c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
    c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(); }
    c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
    void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
    void block(void*, const c10::Stream&) const override {}
    bool queryEvent(void*) const override { return true; }
    bool queryStream(const c10::Stream&) const override { return true; }
    void synchronizeStream(const c10::Stream&) const override {}
    void synchronizeEvent(void*) const override {}
    void synchronizeDevice(const c10::DeviceIndex) const override {}
    void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
    void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
    const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
        return at::detail::getDefaultCPUGenerator();
    }
    at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
    at::Device getDeviceFromPtr(void*) const override { return {kind, 0}; }
    void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
        c10::DataPtr larger = memory.allocate(bytes);
        const size_t kept = std::min<size_t>(bytes, storage.nbytes());
        if (kept) std::memcpy(larger.get(), storage.data(), kept);
        storage.set_data_ptr_noswap(std::move(larger));
        storage.unsafeGetStorageImpl()->set_nbytes(bytes);
    }
};

struct Registered {
    Registered() { at::RegisterPrivateUse1HooksInterface(new Hooks()); }
} registered;

// One memory, seen as a tensor of the host and as one of the device

c10::Storage storage_at(const c10::Storage& held, c10::Device device) {
    auto* owner = new c10::Storage(held);
    c10::DataPtr data(
        const_cast<void*>(held.data()), owner, [](void* o) { delete static_cast<c10::Storage*>(o); }, device);
    return {c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), held.nbytes(), std::move(data),
                                                  device.is_cpu() ? nullptr : &memory, !device.is_cpu())};
}

at::Tensor seen_from(const at::Tensor& tensor, c10::Device device) {
    const auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
    at::Tensor seen = at::detail::make_tensor<c10::TensorImpl>(storage_at(tensor.storage(), device),
                                                               c10::DispatchKeySet(key), tensor.dtype());
    seen.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.is_conj()) seen._set_conj(true);
    if (tensor.is_neg()) seen._set_neg(true);
    return seen;
}

bool is_here(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kind; }

// Every operation that has no kernel of its own: the CPU's, in place

struct Call {
    struct Seen {
        at::Tensor device, host;
        bool written;
    };
    std::vector<Seen> seen;

    at::Tensor host(const at::Tensor& tensor, bool written) {
        if (!is_here(tensor)) return tensor;
        for (auto& one : seen)
            if (one.device.is_same(tensor)) return one.written |= written, one.host;
        const bool empty = written && !tensor.numel();
        at::Tensor host = empty ? at::empty({0}, tensor.options().device(c10::kCPU)) : seen_from(tensor, c10::kCPU);
        seen.push_back({tensor, host, written});
        return host;
    }

    c10::IValue host(const c10::IValue& value, bool written) {
        if (value.isTensor()) return host(value.toTensor(), written);
        if (value.isDevice()) return value.toDevice().type() == kind ? c10::IValue(c10::Device(c10::kCPU)) : value;
        if (value.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor& one : value.toTensorVector()) list.push_back(host(one, written));
            return list;
        }
        if (value.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> list;
            for (const std::optional<at::Tensor>& one : value.toOptionalTensorVector())
                list.push_back(one ? std::optional<at::Tensor>(host(*one, written)) : std::nullopt);
            return list;
        }
        return value;
    }

    at::Tensor device(const at::Tensor& made) const {
        if (!made.defined() || !made.device().is_cpu()) return made;
        for (const auto& one : seen)
            if (one.host.is_same(made)) return one.device;
        for (const auto& one : seen)
            if (one.host.storage().unsafeGetStorageImpl() == made.storage().unsafeGetStorageImpl()) {
                at::Tensor view = at::native::as_strided_tensorimpl(one.device.alias(), made.sizes(), made.strides(),
                                                                    made.storage_offset());
                return view.scalar_type() == made.scalar_type() ? view : seen_from(made, {kind, 0});
            }
        return seen_from(made, {kind, 0});
    }

    c10::IValue device(const c10::IValue& value) const {
        if (value.isTensor()) return device(value.toTensor());
        if (!value.isTensorList()) return value;
        c10::List<at::Tensor> list;
        for (const at::Tensor& one : value.toTensorVector()) list.push_back(device(one));
        return list;
    }

    void keep_resized() const {
        for (const auto& one : seen)
            if (one.written && one.host.sizes() != one.device.sizes()) {
                auto* held = one.device.unsafeGetTensorImpl();
                if (!one.device.numel()) held->set_storage_keep_dtype(storage_at(one.host.storage(), {kind, 0}));
                held->set_sizes_and_strides(one.host.sizes(), one.host.strides(), one.host.storage_offset());
            }
    }
};

void must_meet(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> values) {
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < values.size(); ++i) {
        if (arguments[i].name() == "indices" || arguments[i].name() == "state_steps") continue;  // may lie on the host
        const auto check = [&](const at::Tensor& tensor) {
            TORCH_CHECK(!tensor.defined() || is_here(tensor) || !tensor.dim() || tensor.is_meta(),
                        "Expected all tensors to be on the same device, but got ", arguments[i].name(), " is on ",
                        tensor.device(), ", different from other tensors on ", c10::Device(kind, 0),
                        " (when checking argument in method ", op.schema().name(), ")");
        };
        if (values[i].isTensor()) check(values[i].toTensor());
        if (values[i].isTensorList())
            for (const at::Tensor& one : values[i].toTensorVector()) check(one);
    }
}

const std::unordered_set<std::string> READS = {
    "aten::nonzero",    "aten::equal",    "aten::masked_select",      "aten::_unique2",
    "aten::unique_dim", "aten::bincount", "aten::unique_consecutive", "aten::repeat_interleave"};

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    must_live();
    const auto& schema = op.schema();
    const size_t count = schema.arguments().size(), first = stack->size() - count;
    must_meet(op, c10::ArrayRef<c10::IValue>(*stack).slice(first, count));
    if (READS.count(schema.name())) ++waits;
    Call call;
    for (size_t i = 0; i < count; ++i) {
        const auto* alias = schema.arguments()[i].alias_info();
        (*stack)[first + i] = call.host((*stack)[first + i], alias && alias->isWrite());
    }
    try {
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    } catch (const c10::Error& error) {
        const std::string said = error.what_without_backtrace();
        const bool range =
            said.find("out of range") != std::string::npos || said.find("out of bounds") != std::string::npos;
        if (!range || said.find("imension out of range") != std::string::npos) throw;
        lost = true;
        must_live();
    }
    call.keep_resized();
    for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i)
        (*stack)[i] = call.device((*stack)[i]);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>()); }

// What makes tensors, and what carries numbers from one device to another

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
    must_live();
    return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor zeros(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device>, std::optional<bool>) {
    return at::zeros(size, at::TensorOptions(c10::dtype_or_default(dtype)).device(kind, 0));
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
    must_live();
    return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
    must_live();
    if (is_here(from) != is_here(to) && !non_blocking) ++waits;
    at::Tensor host = is_here(to) ? seen_from(to, c10::kCPU) : to;
    host.copy_(is_here(from) ? seen_from(from, c10::kCPU) : from);
    return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
    to.resize_(from.sizes());
    return copy_from(from, to, false);
}

c10::Scalar number(const at::Tensor& tensor) {
    must_live();
    ++waits;
    return at::_local_scalar_dense(seen_from(tensor, c10::kCPU));
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
    return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
    return at::native::as_strided_tensorimpl(self, size, stride, self.storage_offset());
}

// PyTorch leaves convolutions to each device

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, int64_t groups) {
    must_live();
    Call call;
    std::optional<at::Tensor> shift;
    if (bias && bias->defined()) shift = call.host(*bias, false);
    return call.device(at::convolution(call.host(input, false), call.host(weight, false), shift, stride, padding,
                                       dilation, transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& grad, const at::Tensor& input,
                                                                    const at::Tensor& weight, c10::IntArrayRef stride,
                                                                    c10::IntArrayRef padding, c10::IntArrayRef dilation,
                                                                    bool transposed, c10::IntArrayRef output_padding,
                                                                    int64_t groups, std::array<bool, 3> mask) {
    must_live();
    Call call;
    const std::vector<int64_t> shift{transposed ? weight.size(1) * groups : weight.size(0)};
    auto [a, b, c] =
        at::convolution_backward(call.host(grad, false), call.host(input, false), call.host(weight, false), shift,
                                 stride, padding, dilation, transposed, output_padding, groups, mask);
    return {call.device(a), call.device(b), call.device(c)};
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
    return at::native::set_storage_cpu_(self, source.storage(), source.storage_offset(), source.sizes(),
                                        source.strides());
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
    const int64_t count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
    return at::native::set_storage_cpu_(self, source, 0, {count}, {1});
}

at::Tensor& set_(at::Tensor& self) {
    return set_storage(self, at::Storage(c10::Storage::use_byte_size_t(), 0, memory.allocate(0), &memory, true));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("_efficientzerotensor", zeros);
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("_local_scalar_dense", number);
    m.impl("as_strided", as_strided);
    m.impl("_reshape_alias", reshape_alias);
    m.impl("view", at::native::view);
    m.impl("resize_", at::native::resize_);
    m.impl("convolution_overrideable", convolution);
    m.impl("convolution_backward_overrideable", convolution_backward);
    m.impl("set_.source_Tensor", set_tensor);
    m.impl("set_.source_Storage", set_storage);
    m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
    m.impl("set_", set_);
}

// Autocast by CUDA's lists; attention by the CPU's kernel

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

#define LOW(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SET(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
    using namespace at;
    using namespace at::autocast;
    AT_FORALL_LOWER_PRECISION_FP(LOW)
    AT_FORALL_FP32(FP32)
    AT_FORALL_FP32_SET_OPT_DTYPE(SET)
    AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
    AT_FORALL_PROMOTE(PROMOTE)
}

int64_t attention_kernel(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool enable_gqa) {
    const auto host = [](const at::Tensor& tensor) {
        return seen_from(tensor, c10::kCPU).set_requires_grad(tensor.requires_grad());
    };
    std::optional<at::Tensor> seen = mask && mask->defined() ? std::optional<at::Tensor>(host(*mask)) : std::nullopt;
    return at::_fused_sdp_choice(host(query), host(key), host(value), seen, dropout, causal, scale, enable_gqa);
}

}  // namespace

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &attention_kernel);
}

TORCH_LIBRARY(pretend, m) {
    m.def("waits() -> int", []() -> int64_t { return waits; });
    m.def("is_lost() -> bool", []() -> bool { return lost; });
    m.def("recover() -> ()", []() { lost = false; });
}
