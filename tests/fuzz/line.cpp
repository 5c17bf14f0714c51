// Problem lines: parsed or refused; what is parsed prints as the same line again, and, where it is small, can be planned and run.
#include "bytes.h"
#include "foveal/error.h"
#include "problem/case_data.h"
#include "workspace.h"

using namespace foveal;

namespace {

/// Small enough to be made real in a fuzzer.
bool small(const problem::Line& line) {
  std::int64_t work = 1;
  for (const std::int64_t size : {line.batch, line.heads_q, line.heads_kv, line.seqlen_q, line.seqlen_kv, line.head_dim, line.head_dim_v,
                                  std::max<std::int64_t>(line.pages, 1), std::max<std::int64_t>(line.page_size, 1)}) {
    if (size < 0 || size > 64) return false;
    work *= size;
  }
  for (const auto& param : line.params)
    for (const std::int64_t size : param.param.shape())
      if (size > 64) return false;
  for (const auto& [role, strides] : line.strides)
    for (const std::int64_t stride : strides)
      if (stride > 4096 || stride < -4096) return false;
  return work < 1 << 17 && line.total_q <= 256 && line.total_kv <= 256 && line.lengths.size() < 16 && line.device.kind == DeviceKind::cpu;
}

void run(const problem::Line& line) {
  const problem::CaseData data(line);
  PlanOptions options = line.options;
  options.threads = 1;
  const Plan plan = foveal::plan(line.attention, data.forward_inputs(), data.forward_outputs(), options);
  plan.explain().to_string();
  static fuzz::Workspace workspace;
  if (plan.workspace_bytes() > workspace.size()) return;
  plan.run(data.forward_inputs(), data.forward_outputs(), workspace.of(plan.workspace_bytes()));
  if (line.pass == Pass::backward) foveal::backward(line.attention, data.backward_inputs(), data.backward_outputs(), {}, options);
  if (const std::string damage = data.damage(); !damage.empty()) fuzz::found(("memory was written beside " + damage).c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  [[maybe_unused]] static const bool alone = (set_num_threads(1), true);  // AddressSanitizer starts threads slowly
  problem::Line line;
  try {
    line = problem::parse_line({reinterpret_cast<const char*>(data), size});
  } catch (const Error&) {
    return 0;
  }
  std::string printed;
  try {
    printed = to_string(line);
  } catch (const Error&) {  // an expression that is too long to print
    return 0;
  }
  try {
    if (to_string(problem::parse_line(printed)) != printed) fuzz::found(("printed otherwise the second time: " + printed).c_str());
  } catch (const Error& error) {
    fuzz::found((std::string("what was printed is not parsed: ") + error.what()).c_str());
  }
  try {
    if (small(line)) run(line);
  } catch (const Error&) {
  }
  return 0;
}
