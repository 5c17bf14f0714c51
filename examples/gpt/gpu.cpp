// A GPU as a Machine. The driver, NVRTC and cuBLAS are loaded on first use, so that the program starts without them.
#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <type_traits>

#include "machine.h"

namespace gpt {

extern const char* const gpu_layers_source;  // gpu_layers.cu

namespace {

using Pointer = unsigned long long;

/// The functions used of each library, by the names in its header.
struct Functions {
  int (*cuInit)(unsigned);
  int (*cuGetErrorString)(int, const char**);
  int (*cuDeviceGet)(int*, int);
  int (*cuDeviceGetAttribute)(int*, int, int);
  int (*cuDevicePrimaryCtxRetain)(void**, int);
  int (*cuCtxSetCurrent)(void*);
  int (*cuMemAlloc_v2)(Pointer*, std::size_t);
  int (*cuMemFree_v2)(Pointer);
  int (*cuMemcpyHtoD_v2)(Pointer, const void*, std::size_t);
  int (*cuMemcpyDtoH_v2)(void*, Pointer, std::size_t);
  int (*cuMemsetD32_v2)(Pointer, unsigned, std::size_t);
  int (*cuModuleLoadData)(void**, const void*);
  int (*cuModuleGetFunction)(void**, void*, const char*);
  int (*cuLaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);

  int (*nvrtcCreateProgram)(void**, const char*, const char*, int, const char* const*, const char* const*);
  int (*nvrtcCompileProgram)(void*, int, const char* const*);
  int (*nvrtcGetPTXSize)(void*, std::size_t*);
  int (*nvrtcGetPTX)(void*, char*);
  int (*nvrtcGetProgramLogSize)(void*, std::size_t*);
  int (*nvrtcGetProgramLog)(void*, char*);
  int (*nvrtcDestroyProgram)(void**);

  int (*cublasCreate_v2)(void**);
  int (*cublasDestroy_v2)(void*);
  int (*cublasSgemm_v2)(void*, int, int, int, int, int, const float*, const float*, int, const float*, int, const float*, float*, int);
};

struct Loaded {
  Functions f{};
  std::string unavailable;
};

void* open_library(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    for (const char* folder : {"", "/usr/local/cuda/lib64/"})
      if (void* library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

Loaded load() {
  Loaded loaded;
  const char* given = std::getenv("FOVEAL_NVRTC_PATH");
  void* const driver = open_library({"libcuda.so.1"});
  void* const compiler = open_library({given ? given : "libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"});
  void* const blas = open_library({"libcublas.so.13", "libcublas.so.12", "libcublas.so"});
  if (!driver) loaded.unavailable = "no NVIDIA driver: libcuda.so.1 not found";
  if (driver && !compiler) loaded.unavailable = "no libnvrtc found; FOVEAL_NVRTC_PATH may name it";
  if (driver && compiler && !blas) loaded.unavailable = "no libcublas found";
  const auto find = [&](void* library, auto& function, const char* name) {
    if (!loaded.unavailable.empty()) return;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function) loaded.unavailable = fmt::format("{} is missing", name);
  };
  Functions& f = loaded.f;
#define GPT_FIND(library, name) find(library, f.name, #name)
  GPT_FIND(driver, cuInit), GPT_FIND(driver, cuGetErrorString), GPT_FIND(driver, cuDeviceGet), GPT_FIND(driver, cuDeviceGetAttribute);
  GPT_FIND(driver, cuDevicePrimaryCtxRetain), GPT_FIND(driver, cuCtxSetCurrent), GPT_FIND(driver, cuMemAlloc_v2),
      GPT_FIND(driver, cuMemFree_v2);
  GPT_FIND(driver, cuMemcpyHtoD_v2), GPT_FIND(driver, cuMemcpyDtoH_v2), GPT_FIND(driver, cuMemsetD32_v2),
      GPT_FIND(driver, cuModuleLoadData);
  GPT_FIND(driver, cuModuleGetFunction), GPT_FIND(driver, cuLaunchKernel);
  GPT_FIND(compiler, nvrtcCreateProgram), GPT_FIND(compiler, nvrtcCompileProgram), GPT_FIND(compiler, nvrtcGetPTXSize);
  GPT_FIND(compiler, nvrtcGetPTX), GPT_FIND(compiler, nvrtcGetProgramLogSize), GPT_FIND(compiler, nvrtcGetProgramLog);
  GPT_FIND(compiler, nvrtcDestroyProgram);
  GPT_FIND(blas, cublasCreate_v2), GPT_FIND(blas, cublasDestroy_v2), GPT_FIND(blas, cublasSgemm_v2);
#undef GPT_FIND
  int device = 0;
  if (loaded.unavailable.empty() && (f.cuInit(0) != 0 || f.cuDeviceGet(&device, 0) != 0)) loaded.unavailable = "the driver finds no GPU";
  return loaded;
}

const Loaded& loaded() {
  static const Loaded value = load();
  return value;
}

void check(int result, const char* call) {
  if (result == 0) return;
  const char* text = nullptr;
  loaded().f.cuGetErrorString(result, &text);
  throw std::runtime_error(fmt::format("gpu: {}: {} ({})", call, text ? text : "failed", result));
}

class Gpu final : public Machine<float> {
 public:
  Gpu() : f_(loaded().f) {
    void* context = nullptr;
    int device = 0;
    check(f_.cuDeviceGet(&device, 0), "cuDeviceGet");
    check(f_.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(f_.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    compile(device);
    check(f_.cublasCreate_v2(&blas_), "cublasCreate");
  }
  ~Gpu() override {
    f_.cublasDestroy_v2(blas_);
    for (const Pointer block : blocks_) f_.cuMemFree_v2(block);
  }

  foveal::Device device() const override { return {foveal::DeviceKind::cuda, 0}; }

  float* allocate(std::int64_t size) override {
    Pointer block = 0;
    check(f_.cuMemAlloc_v2(&block, std::max<std::size_t>(1, static_cast<std::size_t>(size)) * sizeof(float)), "cuMemAlloc");
    blocks_.push_back(block);
    return reinterpret_cast<float*>(block);
  }
  void write(float* to, const std::vector<float>& from) override {
    check(f_.cuMemcpyHtoD_v2(number(to), from.data(), from.size() * sizeof(float)), "cuMemcpyHtoD");
  }
  void read(std::vector<float>& to, const float* from) override {
    check(f_.cuMemcpyDtoH_v2(to.data(), number(from), to.size() * sizeof(float)), "cuMemcpyDtoH");
  }
  void zero(float* x, std::int64_t size) override { check(f_.cuMemsetD32_v2(number(x), 0, static_cast<std::size_t>(size)), "cuMemsetD32"); }

  void linear(float* y, const float* x, const float* w, std::int64_t rows, std::int64_t in, std::int64_t out) override {
    multiply(rows, out, in, x, in, false, w, in, true, 0, y, out);
  }
  void linear_backward(float* dx, float* dw, const float* dy, const float* x, const float* w, std::int64_t rows, std::int64_t in,
                       std::int64_t out) override {
    multiply(rows, in, out, dy, out, false, w, in, false, 0, dx, in);
    multiply(out, in, rows, dy, out, true, x, in, false, 1, dw, in);
  }
  void layer_norm(float* y, float* mean, float* rstd, const float* x, const float* gain, const float* shift, std::int64_t rows,
                  std::int64_t width) override {
    launch("layer_norm", rows, y, mean, rstd, x, gain, shift, width);
  }
  void layer_norm_backward(float* dx, float* dgain, float* dshift, const float* dy, const float* x, const float* gain, const float* mean,
                           const float* rstd, std::int64_t rows, std::int64_t width) override {
    launch("layer_norm_backward_rows", rows, dx, dy, x, gain, mean, rstd, width);
    launch("layer_norm_backward_columns", width, dgain, dshift, dy, x, mean, rstd, rows, width);
  }
  void gelu(float* y, const float* x, std::int64_t size) override { launch("gelu", blocks_of(size), y, x, size); }
  void gelu_backward(float* dy, const float* x, std::int64_t size) override { launch("gelu_backward", blocks_of(size), dy, x, size); }
  void add(float* y, const float* x, std::int64_t size) override { launch("add", blocks_of(size), y, x, size); }
  void embed(float* y, const float* table, const std::vector<std::int32_t>& tokens, std::int64_t width) override {
    const std::int32_t* on_device = upload(tokens);
    launch("embed", static_cast<std::int64_t>(tokens.size()), y, table, on_device, width);
  }
  void embed_backward(float* dtable, const float* dy, const std::vector<std::int32_t>& tokens, std::int64_t classes,
                      std::int64_t width) override {
    const std::int32_t* on_device = upload(tokens);
    launch("embed_backward", classes, dtable, dy, on_device, static_cast<std::int64_t>(tokens.size()), width);
  }
  double cross_entropy(float* logits, const std::vector<std::int32_t>& targets, std::int64_t classes) override {
    const auto rows = static_cast<std::int64_t>(targets.size());
    const std::int32_t* on_device = upload(targets);
    if (rows > losses_size_) losses_ = allocate(losses_size_ = rows);
    launch("cross_entropy", rows, losses_, logits, on_device, rows, classes);
    std::vector<float> losses(targets.size());
    read(losses, losses_);
    double total = 0;
    for (const float loss : losses) total += loss;
    return total / static_cast<double>(rows);
  }

 private:
  static constexpr unsigned threads = 128;
  static Pointer number(const void* address) { return reinterpret_cast<Pointer>(address); }
  static std::int64_t blocks_of(std::int64_t size) { return (size + threads - 1) / threads; }

  void compile(int device) {
    int major = 0, minor = 0;
    check(f_.cuDeviceGetAttribute(&major, 75, device), "cuDeviceGetAttribute");
    check(f_.cuDeviceGetAttribute(&minor, 76, device), "cuDeviceGetAttribute");
    const std::string arch = fmt::format("--gpu-architecture=compute_{}{}", major, minor);
    const char* options[] = {arch.c_str()};
    void* program = nullptr;
    std::size_t size = 0;
    check(f_.nvrtcCreateProgram(&program, gpu_layers_source, "gpu_layers.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
    if (f_.nvrtcCompileProgram(program, 1, options) != 0) {
      f_.nvrtcGetProgramLogSize(program, &size);
      std::string log(size, '\0');
      f_.nvrtcGetProgramLog(program, log.data());
      throw std::runtime_error("gpu: gpu_layers.cu does not compile\n" + log);
    }
    check(f_.nvrtcGetPTXSize(program, &size), "nvrtcGetPTXSize");
    std::string ptx(size, '\0');
    check(f_.nvrtcGetPTX(program, ptx.data()), "nvrtcGetPTX");
    f_.nvrtcDestroyProgram(&program);
    check(f_.cuModuleLoadData(&module_, ptx.c_str()), "cuModuleLoadData");
  }

  template <class... Arguments>
  void launch(const char* kernel, std::int64_t blocks, Arguments... arguments) {
    void*& function = functions_[kernel];
    if (!function) check(f_.cuModuleGetFunction(&function, module_, kernel), kernel);
    void* parameters[] = {&arguments...};
    check(f_.cuLaunchKernel(function, static_cast<unsigned>(blocks), 1, 1, threads, 1, 1, 0, nullptr, parameters, nullptr), kernel);
  }

  /// c[rows, columns] = op(a) op(b) + beta c, row-major. cuBLAS counts by columns: it computes c^T = op(b)^T op(a)^T.
  void multiply(std::int64_t rows, std::int64_t columns, std::int64_t depth, const float* a, std::int64_t lda, bool transpose_a,
                const float* b, std::int64_t ldb, bool transpose_b, float beta, float* c, std::int64_t ldc) {
    const float alpha = 1;
    check(f_.cublasSgemm_v2(blas_, transpose_b, transpose_a, static_cast<int>(columns), static_cast<int>(rows), static_cast<int>(depth),
                            &alpha, b, static_cast<int>(ldb), a, static_cast<int>(lda), &beta, c, static_cast<int>(ldc)),
          "cublasSgemm");
  }

  const std::int32_t* upload(const std::vector<std::int32_t>& tokens) {
    const auto size = static_cast<std::int64_t>(tokens.size());
    if (size > tokens_size_) tokens_ = allocate(tokens_size_ = size);  // as wide as a float
    check(f_.cuMemcpyHtoD_v2(number(tokens_), tokens.data(), tokens.size() * sizeof(std::int32_t)), "cuMemcpyHtoD");
    return reinterpret_cast<const std::int32_t*>(tokens_);
  }

  const Functions& f_;
  void *module_ = nullptr, *blas_ = nullptr;
  std::map<std::string, void*> functions_;
  std::vector<Pointer> blocks_;
  float *tokens_ = nullptr, *losses_ = nullptr;
  std::int64_t tokens_size_ = 0, losses_size_ = 0;
};

}  // namespace

std::string gpu_unavailable() { return loaded().unavailable; }

std::unique_ptr<Machine<float>> make_gpu() {
  if (!gpu_unavailable().empty()) throw std::runtime_error("gpu: " + gpu_unavailable());
  return std::make_unique<Gpu>();
}

}  // namespace gpt
