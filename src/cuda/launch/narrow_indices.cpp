#include "cuda/launch/narrow_indices.h"

#include <algorithm>

#include "base/check.h"
#include "base/divide.h"
#include "cuda/device/narrow_args.cuh"
#include "cuda/launch/attention_args.h"
#include "cuda/launch/wrapped_pass.h"
#include "cuda/score/score_forms.h"
#include "plan/gather_pages.h"
#include "score/varies.h"

namespace foveal::cuda {
namespace {

constexpr std::int64_t most_rows = 65535, row_multiple = 16;  // bytes: tiles that TMA loads

/// Is a parameter read per pair, and only to index dimensions of at most 256 elements?
bool only_chooses(const problem::Problem& p, std::size_t param) {
  const Program& program = p.score->forward;
  const auto reads = [&](const Instr& instr) { return instr.op == Op::read && static_cast<std::size_t>(instr.param) == param; };
  if (std::any_of(p.score->mask.code.begin(), p.score->mask.code.end(), reads)) return false;
  bool at_pairs = false;
  const auto is_one = [&](ValueId id) { return id >= 0 && reads(program[id]); };
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const Instr& instr = program.code[i];
    at_pairs = at_pairs || (reads(instr) && scoring::varies(program, static_cast<ValueId>(i)) == Varies::pair);
    if (std::any_of(instr.arg.begin(), instr.arg.end(), is_one)) return false;
    for (std::size_t d = 0; d < instr.index.size(); ++d)
      if (is_one(instr.index[d]) && p.params[static_cast<std::size_t>(instr.param)].param.shape()[d] > 256) return false;
  }
  return at_pairs && std::none_of(program.outputs.begin(), program.outputs.end(), is_one);
}

/// Bytes with rows that begin at multiples of 16.
problem::TensorSpec as_bytes(const problem::TensorSpec& tensor) {
  problem::TensorSpec bytes = tensor;
  bytes.dtype = DType::u8, bytes.aligned = true;
  std::int64_t stride = 1;
  for (auto d = static_cast<std::size_t>(tensor.rank); d-- > 0;) {
    bytes.strides[d] = stride;
    stride *= tensor.sizes[d];
    if (d + 1 == static_cast<std::size_t>(tensor.rank)) stride = base::round_up(stride, row_multiple);
  }
  return bytes;
}
std::int64_t bytes_of(const problem::TensorSpec& bytes) { return bytes.sizes[0] * (bytes.rank > 1 ? bytes.strides[0] : row_multiple); }
std::int64_t rows_of(const problem::TensorSpec& tensor) {
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < tensor.rank; ++d) rows *= tensor.sizes[static_cast<std::size_t>(d)];
  return rows;
}

bool lie_together(const problem::TensorSpec& tensor) {
  const auto rank = static_cast<std::size_t>(tensor.rank);
  bool together = tensor.aligned && tensor.strides[rank - 1] == 1;
  for (std::size_t d = 0; d + 1 < rank; ++d) together = together && tensor.strides[d] % 4 == 0;
  return together && 4 * size_of(tensor.dtype) <= 16;
}

class NarrowIndices : public WrappedPass {
 public:
  NarrowIndices(const problem::Problem& problem, const problem::Problem& narrow, std::unique_ptr<GpuExecutable> pass)
      : WrappedPass(problem, std::move(pass)), narrow_(narrow) {
    for (std::size_t i = 0; i < p_.params.size(); ++i) {
      const problem::TensorSpec &from = p_.params[i].tensor, &to = narrow_.params[i].tensor;
      if (from == to) continue;
      jit::Constants constants;
      constants.set_type("Index", jit::device_type(from.dtype))
          .set_struct("kConfig", "NarrowConfig", "narrow_args.cuh",
                      device::NarrowConfig{.rank = from.rank, .together = lie_together(from)});
      narrowed_.push_back({.param = i,
                           .offset = workspace_.reserve(static_cast<std::size_t>(bytes_of(to))),
                           .kernel = kernels_.add({.stem = "narrow_indices", .constants = constants})});
    }
  }

  void describe(Explanation& e) const override {
    pass_->describe(e);
    for (const Narrowed& one : narrowed_)
      e.details.emplace_back(p_.params[one.param].param.name(), "made bytes before the pass, which reads them for each head");
  }

  void run(const problem::Buffers& given, void* workspace, Stream stream) const override {
    const driver::Current current(p_.device.index);
    planning::OwnBuffers buffers(given);
    for (const Narrowed& one : narrowed_) {
      const problem::TensorSpec& to = narrow_.params[one.param].tensor;
      const TensorView from = given.params[one.param];
      if (lie_together(p_.params[one.param].tensor) && reinterpret_cast<std::uintptr_t>(from.data) % 16 != 0)
        base::fail(ErrorCode::invalid_argument, "parameter ", p_.params[one.param].param.name(), ": begins at ", from.data,
                   ", no multiple of 16 bytes as that which was planned for; plan with tensors like it");
      TensorView& view = buffers->params[one.param];
      view.data = Workspace::at<void>(workspace, one.offset), view.dtype = to.dtype, view.strides = to.strides;
      device::NarrowArgs args{};
      args.from.data = from.data, args.to = static_cast<unsigned char*>(view.data);
      for (int d = 0; d < to.rank; ++d) {
        const auto at = static_cast<std::size_t>(d);
        args.from.stride[d] = from.strides[at], args.from.size[d] = static_cast<int>(from.sizes[at]), args.to_stride[d] = to.strides[at];
      }
      const std::int64_t columns = to.sizes[static_cast<std::size_t>(to.rank) - 1];
      one.kernel->launch({.grid_x = static_cast<unsigned>(base::divide_up(columns, 4 * device::kNarrowThreads)),
                          .grid_y = static_cast<unsigned>(rows_of(to)),
                          .threads = device::kNarrowThreads},
                         args, stream);
    }
    pass_->run(*buffers, workspace, stream);
  }

 private:
  struct Narrowed {
    std::size_t param;
    std::size_t offset;  ///< in the workspace
    jit::KernelHandle kernel;
  };

  problem::Problem narrow_;
  std::vector<Narrowed> narrowed_;
};

}  // namespace

std::optional<problem::Problem> narrowed(const problem::Problem& p) {
  constexpr std::int64_t least_queries = 128, least_uses = 8, most_bytes = std::int64_t{1} << 28;
  if (p.pass != Pass::forward || !p.has_score_mod() || p.seqlen_q < least_queries || p.varlen || p.part) return {};
  problem::Problem narrow = p;
  bool any = false;
  for (std::size_t i = 0; i < p.params.size(); ++i) {
    const problem::TensorSpec& tensor = p.params[i].tensor;
    const bool fits = tensor.dtype == DType::i8 || tensor.dtype == DType::i16 || tensor.dtype == DType::i32 || tensor.dtype == DType::i64;
    if (!fits || tensor.rank < 2 || tensor.rank > 4 || rows_of(tensor) > most_rows || !only_chooses(p, i)) continue;
    const problem::TensorSpec bytes = as_bytes(tensor);
    const std::int64_t size = bytes_of(bytes), pairs = p.batch * p.heads_q * p.seqlen_q * p.seqlen_kv;
    if (size == 0 || size > most_bytes || pairs / size < least_uses) continue;
    narrow.params[i].tensor = bytes;
    any = true;
  }
  return any ? std::optional(narrow) : std::nullopt;
}

std::unique_ptr<GpuExecutable> with_narrow_indices(const problem::Problem& problem, const problem::Problem& narrow,
                                                   std::unique_ptr<GpuExecutable> pass) {
  return std::make_unique<NarrowIndices>(problem, narrow, std::move(pass));
}

}  // namespace foveal::cuda
