// Device "lag": a stand-in for a GPU on a machine that has none, as torch's PrivateUse1 device.
//
// Memory is the host's, and operators run on the CPU at the time of their call. A stream is a list of tasks that it waits
// for; an operator first waits for the tasks of the current stream. So a program that does not wait for a collective reads
// memory that the collective has not written yet. Freed memory is filled with 0xFF, and is not used again for a while. If
// streams were recorded on it, as by Tensor::record_stream, that happens once their tasks have ended.

#include <torch/extension.h>

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
using c10::StreamId;
constexpr auto LAG = c10::DeviceType::PrivateUse1;
constexpr size_t QUARANTINE_NBYTES = 256 << 20;

// Something that streams wait for.
class Task {
 public:
  void finish() {
    std::lock_guard<std::mutex> guard(mutex_);
    done_ = true;
    ended_.notify_all();
  }
  bool is_done() {
    std::lock_guard<std::mutex> guard(mutex_);
    return done_;
  }
  void wait() {
    std::unique_lock<std::mutex> guard(mutex_);
    ended_.wait(guard, [this] { return done_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
};

using Tasks = std::vector<std::shared_ptr<Task>>;
struct Event {
  Tasks tasks;
};
struct Block {
  size_t nbytes;
  std::set<StreamId> streams;
};

std::mutex state;
std::map<StreamId, Tasks> pending;
std::map<int64_t, std::shared_ptr<Task>> held;
std::map<void*, Block> blocks;
std::deque<std::pair<void*, size_t>> quarantine;
size_t quarantine_nbytes = 0;
int64_t next_task = 1, host_waits = 0;
StreamId next_stream = 1;
thread_local StreamId current = 0;

Tasks tasks_of(StreamId stream) {
  std::lock_guard<std::mutex> guard(state);
  auto& all = pending[stream];
  all.erase(std::remove_if(all.begin(), all.end(), [](auto& task) { return task->is_done(); }), all.end());
  return all;
}

void wait_for(const Tasks& tasks) {
  for (auto& task : tasks) {
    if (task->is_done()) continue;
    ++host_waits;
    if (PyGILState_Check()) {
      py::gil_scoped_release release;
      task->wait();
    } else {
      task->wait();
    }
  }
}

void wait_for_stream(StreamId stream) { wait_for(tasks_of(stream)); }

void poison(void* address, size_t nbytes) {
  std::memset(address, 0xFF, nbytes);
  std::lock_guard<std::mutex> guard(state);
  quarantine.emplace_back(address, nbytes);
  quarantine_nbytes += nbytes;
  while (quarantine_nbytes > QUARANTINE_NBYTES) {
    quarantine_nbytes -= quarantine.front().second;
    std::free(quarantine.front().first);
    quarantine.pop_front();
  }
}

void release(void* address) {
  if (address == nullptr) return;
  Block block;
  {
    std::lock_guard<std::mutex> guard(state);
    block = blocks[address];
    blocks.erase(address);
  }
  Tasks left;
  for (auto stream : block.streams)
    for (auto& task : tasks_of(stream)) left.push_back(task);
  if (left.empty()) return poison(address, block.nbytes);
  std::thread([=] {
    for (auto& task : left) task->wait();
    poison(address, block.nbytes);
  }).detach();
}

struct Allocator : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    void* address = nullptr;
    if (nbytes) {
      address = std::aligned_alloc(64, (nbytes + 63) / 64 * 64);
      std::lock_guard<std::mutex> guard(state);
      blocks[address] = {nbytes, {}};
    }
    return {address, address, &release, Device(LAG, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { std::memcpy(to, from, nbytes); }
} allocator;

void record_on(void* context, StreamId stream) {
  std::lock_guard<std::mutex> guard(state);
  auto found = blocks.find(context);
  if (found != blocks.end()) found->second.streams.insert(stream);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = LAG;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return LAG; }
  Device exchangeDevice(Device) const override { return Device(LAG, 0); }
  Device getDevice() const override { return Device(LAG, 0); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  DeviceIndex deviceCount() const noexcept override { return 1; }

  static Stream stream_of(StreamId id) { return Stream(Stream::UNSAFE, Device(LAG, 0), id); }
  Stream getStream(Device) const override { return stream_of(current); }
  Stream getDefaultStream(Device) const override { return stream_of(0); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return getNewStream(Device(LAG, 0), 0); }
  Stream getNewStream(Device, int) const override {
    std::lock_guard<std::mutex> guard(state);
    return stream_of(next_stream++);
  }
  Stream exchangeStream(Stream stream) const override { return stream_of(std::exchange(current, stream.id())); }
  bool queryStream(const Stream& stream) const override { return tasks_of(stream.id()).empty(); }
  void synchronizeStream(const Stream& stream) const override { wait_for_stream(stream.id()); }
  void synchronizeDevice(DeviceIndex) const override {
    std::vector<StreamId> all;
    {
      std::lock_guard<std::mutex> guard(state);
      for (auto& [stream, tasks] : pending) all.push_back(stream);
    }
    for (auto stream : all) wait_for_stream(stream);
  }

  void record(void** event, const Stream& stream, DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->tasks = tasks_of(stream.id());
  }
  void block(void* event, const Stream& stream) const override {
    if (event == nullptr) return;
    std::lock_guard<std::mutex> guard(state);
    for (auto& task : static_cast<Event*>(event)->tasks) pending[stream.id()].push_back(task);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    for (auto& task : static_cast<Event*>(event)->tasks)
      if (!task->is_done()) return false;
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait_for(static_cast<Event*>(event)->tasks);
  }
  double elapsedTime(void*, void*, DeviceIndex) const override { return 0.; }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    record_on(data.get_context(), stream.id());
  }
};

struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override {}
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  Device getDeviceFromPtr(void*) const override { return Device(LAG, 0); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    wait_for_stream(current);
    auto data = allocator.allocate(nbytes);
    if (data.get() && storage.data()) std::memcpy(data.get(), storage.data(), std::min(nbytes, storage.nbytes()));
    auto* made = storage.unsafeGetStorageImpl();
    made->set_data_ptr_noswap(std::move(data));
    made->set_nbytes(nbytes);
  }
} hooks;

at::Tensor empty(
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device>,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device>,
    std::optional<bool>) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.device().type() != LAG) return tensor;
  auto options = at::TensorOptions().dtype(tensor.dtype());
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  wait_for_stream(current);
  on_host(target).copy_(on_host(source));
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  const_cast<at::Tensor&>(target).resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar item(const at::Tensor& tensor) {
  wait_for_stream(current);
  return on_host(tensor).item();
}

at::Tensor view(const at::Tensor& tensor, c10::SymIntArrayRef size) { return at::cpu::view_symint(tensor, size); }

at::Tensor as_strided(
    const at::Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(tensor, size, stride, offset);
}

at::Tensor alias(const at::Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::cpu::_reshape_alias_symint(tensor, size, stride);
}

const at::Tensor& resize(
    const at::Tensor& tensor, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  int64_t count = 1;
  for (auto extent : sizes) count *= extent;
  size_t nbytes = (tensor.storage_offset() + count) * tensor.itemsize();
  if (nbytes > tensor.storage().nbytes()) hooks.resizePrivateUse1Bytes(tensor.storage(), nbytes);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

at::Tensor& set_storage(
    at::Tensor& tensor, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* made = tensor.unsafeGetTensorImpl();
  made->set_storage_keep_dtype(source);
  made->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return tensor;
}

void record_stream(at::Tensor& tensor, Stream stream) {
  record_on(tensor.storage().data_ptr().get_context(), stream.id());
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  wait_for_stream(current);
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("view", view);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", alias);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("record_stream", record_stream);
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::SetAllocator(LAG, &allocator);
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.def("hold", [](int64_t stream) {
    std::lock_guard<std::mutex> guard(state);
    auto task = std::make_shared<Task>();
    pending[stream].push_back(task);
    held[next_task] = task;
    return next_task++;
  }, "Hold up what the stream is given from now on, until `release` of the number that this returns.");
  m.def("release", [](int64_t number) {
    std::shared_ptr<Task> task;
    {
      std::lock_guard<std::mutex> guard(state);
      auto found = held.find(number);
      if (found == held.end()) return;
      task = found->second;
      held.erase(found);
    }
    task->finish();
  }, "Let the streams go on that wait for `hold`.");
  m.def("num_held", [] {
    std::lock_guard<std::mutex> guard(state);
    return held.size();
  });
  m.def("current", [] { return current; });
  m.def("set_current", [](int64_t stream) { return std::exchange(current, stream); });
  m.def("on_host", &on_host, "Return the memory of a tensor as a CPU tensor, which does not own it; no wait.");
  m.def("unowned", [](const at::Tensor& tensor) {
    auto options = at::TensorOptions().dtype(tensor.dtype()).device(Device(LAG, 0));
    return at::for_blob(tensor.data_ptr(), tensor.sizes())
        .strides(tensor.strides())
        .options(options)
        .target_device(Device(LAG, 0))
        .make_tensor();
  }, "Return the memory of a tensor as a tensor that does not own it.");
  m.def("host_waits", [] { return host_waits; }, "Return how often a CPU thread waited for a task.");
}
