#include "check/check.h"

#include "base/check.h"
#include "check/naive.h"
#include "check/run.h"
#include "problem/problem.h"
#include "reference/reference_backend.h"

namespace foveal::check {

using problem::CaseData;
using problem::Line;

struct Checker::Known {
  CaseData data;
  Results exact;
  NaiveResults naive;
};

namespace {

const PlanOptions on_reference{.backend = "reference"};

Results results_of(const CaseData& data) {
  Results results;
  const bool forward = data.line().pass == Pass::forward;
  for (const char* role : {"out", "lse", "dq", "dk", "dv"})
    if (forward == (role[0] != 'd') && data.view(role).present()) results[role] = problem::values_of(data.view(role));
  if (!forward)
    for (std::size_t i = 0; i < data.line().params.size(); ++i)
      if (data.line().params[i].grad) results["d" + data.line().params[i].param.name()] = problem::values_of(data.dparam(i));
  return results;
}

DType dtype_of(const CaseData& data, const std::string& name) {
  if (data.view(name).present()) return data.view(name).dtype;
  for (std::size_t i = 0; i < data.line().params.size(); ++i)
    if ("d" + data.line().params[i].param.name() == name) return data.dparam(i).dtype;
  return data.line().dtype;
}

/// A row is one token of one head; statistics and parameters are judged as a whole.
std::size_t row_size(const CaseData& data, const std::string& name) {
  const TensorView view = data.view(name);
  return !view.present() || name == "lse" ? 0 : static_cast<std::size_t>(view.sizes[static_cast<std::size_t>(view.rank - 1)]);
}

/// The elements of out, lse or dq of sampled queries; all elements of other results.
std::vector<double> sampled(const CaseData& data, const std::vector<bool>& queries, const std::string& name,
                            const std::vector<double>& values) {
  if (queries.empty() || (name != "out" && name != "lse" && name != "dq")) return values;
  const std::vector<std::int64_t> sizes = problem::role_sizes(data.line(), name);
  const std::size_t dimension = name == "lse" ? 2 : 1;  // of the queries
  std::size_t inner = 1;
  for (std::size_t d = dimension + 1; d < sizes.size(); ++d) inner *= static_cast<std::size_t>(sizes[d]);
  std::vector<double> found;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (queries[i / inner % queries.size()]) found.push_back(values[i]);
  return found;
}

/// The pass, for sampled queries alone.
template <class Inputs, class Outputs>
void run_sampled(const CaseData& data, const Inputs& inputs, const Outputs& outputs) {
  const problem::Problem problem = problem::make_problem(data.line().attention, inputs, outputs);
  problem::Buffers buffers;
  problem::fill_buffers(problem, inputs, outputs, buffers);
  reference::run_queries(problem, buffers, problem::sampled_queries(data.line()));
}

/// Refuses a wrong line in its own dtype, which messages name; the exact results are of another problem.
void make_own(const CaseData& data) {
  const Line& line = data.line();
  if (line.pass == Pass::forward)
    problem::make_problem(line.attention, data.forward_inputs(), data.forward_outputs());
  else
    problem::make_problem(line.attention, data.backward_inputs(), data.backward_outputs());
}

void run_exact(CaseData& data) {
  const Attention& attention = data.line().attention;
  if (data.line().sample > 0) {
    run_sampled(data, data.forward_inputs(), data.forward_outputs());
    if (data.line().pass == Pass::backward) run_sampled(data, data.backward_inputs(), data.backward_outputs());
    return;
  }
  forward(attention, data.forward_inputs(), data.forward_outputs(), {}, on_reference);
  if (data.line().pass == Pass::backward) backward(attention, data.backward_inputs(), data.backward_outputs(), {}, on_reference);
}

}  // namespace

Checker::Checker(CaseData data) {
  make_own(data);
  CaseData exact = data.as_f64();
  run_exact(exact);
  Results exact_results = results_of(exact);
  NaiveResults naive_results = naive(data);
  known_ = std::make_unique<const Known>(Known{std::move(data), std::move(exact_results), std::move(naive_results)});
}

Checker::~Checker() = default;

Report Checker::operator()(const PlanOptions& options) const {
  return judge([&](CaseData& data) { return run_case(data, options); }, options);
}

Report Checker::judge(const std::function<std::string(CaseData&)>& run, const PlanOptions& options) const {
  CaseData data = known_->data;  // shares the inputs; outputs are cleared for every run
  data.clear_outputs(Pass::forward);
  data.clear_outputs(Pass::backward);
  Line line = data.line();
  line.options = options;
  Report report;
  report.line = problem::to_string(line);
  try {
    report.kernel = run(data);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument) base::fail(error.code(), error.what(), " [", report.line, "]");  // of the caller
    report.failure = error.what();
    report.refused = error.code() == ErrorCode::unsupported;
    return report;
  }
  const Results found = results_of(data);
  const std::vector<bool> queries = problem::sampled_queries(data.line());
  for (const auto& [name, values] : found) {
    const auto of_sample = [&, &name = name](const std::vector<double>& all) { return sampled(data, queries, name, all); };
    const auto expected = known_->naive.expected_error.find(name);
    const std::vector<double> error = expected == known_->naive.expected_error.end() ? std::vector<double>{} : of_sample(expected->second);
    report.tensors.push_back(compare(name, dtype_of(data, name), of_sample(values), of_sample(known_->exact.at(name)),
                                     of_sample(known_->naive.values.at(name)), error.empty() ? nullptr : &error, row_size(data, name)));
    if (!report.tensors.back().pass && report.failure.empty()) report.failure = name + ": " + report.tensors.back().failure;
  }
  if (const std::string damaged = data.damage(); !damaged.empty() && report.failure.empty())
    report.failure = "memory beside " + damaged + " was written";
  report.pass = report.failure.empty();
  return report;
}

Report check_line(const Line& line) { return Checker(line)(line.options); }

}  // namespace foveal::check
