// foveal run: attention on tensors from files.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/wide_type.h"
#include "command.h"
#include "files/files.h"
#include "problem/call.h"
#include "score/names.h"
#include "score/node.h"
#include "score/parse.h"
#include "validators.h"

namespace foveal::cli {
namespace {

struct Options {
  std::vector<std::string> inputs;
  std::string output, score, mask, sink;
  std::vector<std::string> gradients;
  std::optional<double> scale;
  double dropout_p = 0;
  DropoutRng rng;
  bool reproducible = false, checked = false, quiet = false;
  PlanOptions plan;
};

// The tensors of all files by name. An input is FILE, or NAME=FILE for a file that holds one tensor. A file whose path has a '=' is FILE.
class Inputs {
 public:
  explicit Inputs(const std::vector<std::string>& arguments) {
    for (const std::string& argument : arguments) {
      std::error_code ignored;
      const std::size_t equals = std::filesystem::exists(argument, ignored) ? std::string::npos : argument.find('=');
      const std::string& path = paths_.emplace_back(equals == std::string::npos ? argument : argument.substr(equals + 1));
      std::vector<Tensor> read = read_tensors(path);
      if (equals != std::string::npos) {
        FOVEAL_CHECK(read.size() == 1, path, ": holds ", read.size(), " tensors; expected one to be named ", argument.substr(0, equals));
        read.front().name = argument.substr(0, equals);
      }
      for (Tensor& tensor : read) {
        std::string name = tensor.name;
        FOVEAL_CHECK(tensors_.try_emplace(name, std::move(tensor)).second, path, ": a second tensor named '", name, "'");
      }
    }
  }

  /// Throws invalid_argument if this file is an input, whose tensors would be lost.
  void check_is_none(const std::string& output) const {
    for (const std::string& path : paths_) {
      std::error_code ignored;
      FOVEAL_CHECK(!std::filesystem::equivalent(path, output, ignored), "--output: ", output,
                   " is an input; expected another file, as this one would lose its tensors");
    }
  }

  bool has(const std::string& name) const { return tensors_.contains(name); }
  Tensor& at(const std::string& name) {
    const auto found = tensors_.find(name);
    FOVEAL_CHECK(found != tensors_.end(), name, ": no input holds a tensor of this name");
    return found->second;
  }
  TensorView view(const std::string& name) { return has(name) ? at(name).view() : TensorView{}; }

  /// Tensors other than arguments of attention are parameters, where the score language can name them.
  std::vector<Tensor*> params() {
    const auto is_argument = [](const problem::Role& role) { return !role.output(Pass::forward) && !role.output(Pass::backward); };
    std::vector<Tensor*> result;
    for (auto& named : tensors_) {
      const auto has_name = [&](const problem::Role& role) { return is_argument(role) && role.name == named.first; };
      if (scoring::is_identifier(named.first) && std::ranges::none_of(problem::roles, has_name)) result.push_back(&named.second);
    }
    return result;
  }
  std::vector<std::string> unspeakable() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_)
      if (!scoring::is_identifier(name)) names.push_back(name);
    return names;
  }

 private:
  std::vector<std::string> paths_;
  std::map<std::string, Tensor> tensors_;
};

Param param_of(const Tensor& tensor) {
  const Type type = is_floating(tensor.dtype) ? Type::real : tensor.dtype == DType::boolean ? Type::boolean : Type::integer;
  return {tensor.name, tensor.shape, type};
}

std::optional<Varlen> varlen_of(Inputs& inputs) {
  if (!inputs.has("cu_seqlens_q") && !inputs.has("cu_seqlens_kv")) return std::nullopt;
  return Varlen{.cu_seqlens_q = inputs.at("cu_seqlens_q").view(), .cu_seqlens_kv = inputs.view("cu_seqlens_kv")};
}

std::optional<Paged> paged_of(Inputs& inputs) {
  if (!inputs.has("block_table") && !inputs.has("seqlens_kv")) return std::nullopt;
  return Paged{.block_table = inputs.view("block_table"), .seqlens_kv = inputs.view("seqlens_kv")};
}

/// Adds the names of the parameters that an expression reads.
void add_reads(const Expr& expr, std::set<std::string>& names) {
  std::set<const scoring::Node*> seen;
  std::vector<const scoring::Node*> open{expr.node().get()};
  while (!open.empty()) {
    const scoring::Node* const node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (node->op == scoring::Op::read) names.insert(node->param->name);
    for (const auto& arg : node->args) open.push_back(arg.get());
  }
}

std::set<std::string> reads_of(const Attention& attention) {
  std::set<std::string> names;
  for (const Expr& expr : {attention.score_mod, attention.mask}) add_reads(expr, names);
  if (attention.sink) names.insert(attention.sink->name());
  return names;
}

/// Whether the gradient of a parameter is wanted: of those named, or of all floating ones that are read.
bool wants_gradient(const Options& options, const Tensor& tensor, const std::set<std::string>& reads) {
  if (options.gradients.empty()) return is_floating(tensor.dtype) && reads.contains(tensor.name);
  return std::ranges::find(options.gradients, tensor.name) != options.gradients.end();
}

/// What only a backward pass takes, without dout, which asks for one; and gradients of what is no parameter.
void check_backward_only(const Options& options, Inputs& inputs, const std::vector<Param>& params) {
  for (const std::string& name : options.gradients)
    FOVEAL_CHECK(std::ranges::find(params, name, &Param::name) != params.end(), "--grad ", name,
                 ": no parameter of this name in the inputs");
  if (inputs.has("dout")) return;
  FOVEAL_CHECK(!inputs.has("dlse"), "dlse: there is no dout; expected both or none");
  FOVEAL_CHECK(options.gradients.empty(), "--grad ", options.gradients.front(), ": there is no dout; expected one for a backward pass");
}

void run(const Options& options) {
  check_output_path(options.output);
  Inputs inputs(options.inputs);
  for (const char* name : {"q", "k", "v"}) inputs.at(name);

  Attention attention;
  std::vector<Param> declared;
  std::vector<ParamBinding> bound;
  for (Tensor* tensor : inputs.params()) {
    declared.push_back(param_of(*tensor));
    bound.push_back({declared.back(), tensor->view()});
  }
  if (!options.score.empty()) attention.score_mod = scoring::parse(options.score, declared, "--score");
  if (!options.mask.empty()) attention.mask = scoring::parse(options.mask, declared, "--mask");
  if (!options.sink.empty()) attention.sink = param_of(inputs.at(options.sink));
  attention.scale = options.scale;
  attention.dropout_p = options.dropout_p;
  attention.determinism = options.reproducible ? Determinism::reproducible : Determinism::fast;
  attention.checked = options.checked;
  check_backward_only(options, inputs, declared);
  const std::set<std::string> reads = reads_of(attention);

  const Tensor &q = inputs.at("q"), &v = inputs.at("v");
  const bool packed = inputs.has("cu_seqlens_q") || inputs.has("cu_seqlens_kv");
  const std::size_t rank = packed ? 3 : 4;
  FOVEAL_CHECK(q.shape.size() == rank, "q: rank ", q.shape.size(), "; expected ", rank,
               packed ? ": [total, heads, head_dim]" : ": [batch, seqlen, heads, head_dim]");
  const std::size_t rank_v = inputs.has("block_table") ? 4 : rank;
  FOVEAL_CHECK(v.shape.size() == rank_v, "v: rank ", v.shape.size(), "; expected ", rank_v);
  std::vector<std::int64_t> out_shape = q.shape;
  out_shape.back() = v.shape.back();
  const std::vector<std::int64_t> lse_shape =
      packed ? std::vector{q.shape[1], q.shape[0]} : std::vector{q.shape[0], q.shape[2], q.shape[1]};
  std::vector<Tensor> results;
  results.reserve(5 + bound.size());  // views into it stay valid
  const auto make = [&](const std::string& name, DType dtype, const std::vector<std::int64_t>& shape) {
    inputs.check_is_none(output_file(name, options.output));
    results.push_back(make_tensor(name, dtype, shape));
    return results.back().view();
  };
  const TensorView out = make("out", q.dtype, out_shape);
  const TensorView lse = make("lse", base::wide_type(q.dtype), lse_shape);

  const ForwardInputs forward_inputs{.q = inputs.view("q"),
                                     .k = inputs.view("k"),
                                     .v = inputs.view("v"),
                                     .params = bound,
                                     .varlen = varlen_of(inputs),
                                     .paged = paged_of(inputs),
                                     .rng = options.rng};
  const ForwardOutputs forward_outputs{.out = out, .lse = lse};
  const Plan forward_plan = plan(attention, forward_inputs, forward_outputs, options.plan);
  std::string kernels = forward_plan.kernel();

  if (!inputs.has("dout")) {
    forward(attention, forward_inputs, forward_outputs, {}, options.plan);
  } else {
    const BackwardInputs backward_inputs{.q = forward_inputs.q,
                                         .k = forward_inputs.k,
                                         .v = forward_inputs.v,
                                         .out = out,
                                         .lse = lse,
                                         .dout = inputs.view("dout"),
                                         .dlse = inputs.view("dlse"),
                                         .params = bound,
                                         .varlen = forward_inputs.varlen,
                                         .paged = forward_inputs.paged,
                                         .rng = options.rng};
    BackwardOutputs backward_outputs{
        .dq = make("dq", q.dtype, q.shape), .dk = make("dk", q.dtype, inputs.at("k").shape), .dv = make("dv", q.dtype, v.shape)};
    for (const ParamBinding& binding : bound) {
      const Tensor& tensor = inputs.at(binding.param.name());
      if (!wants_gradient(options, tensor, reads)) continue;
      const DType dtype = base::wide_type(tensor.dtype);
      backward_outputs.dparams.push_back({binding.param, make("d" + tensor.name, dtype, tensor.shape)});
    }
    const Plan backward_plan = plan(attention, backward_inputs, backward_outputs, options.plan);  // refuses before any work is done
    kernels += " " + backward_plan.kernel();
    forward(attention, forward_inputs, forward_outputs, {}, options.plan);
    backward(attention, backward_inputs, backward_outputs, {}, options.plan);
  }
  write_tensors(results, options.output);
  if (options.quiet) return;
  for (const Tensor& tensor : results) fmt::print("{:<12} {}\n", tensor.name, Tensor(tensor).view().describe());
  for (const Param& param : declared)
    if (!reads.contains(param.name())) fmt::print("{:<12} is not read: neither the score nor the mask names it\n", param.name());
  for (const std::string& name : inputs.unspeakable()) fmt::print("{:<12} is not read: no score or mask can name it\n", name);
  fmt::print("kernels      {}\n", kernels);
}

}  // namespace

void add_run(CLI::App& app) {
  CLI::App* command = app.add_subcommand("run", "Attention on tensors from files: out, lse and, when dout is given, all gradients");
  const auto options = std::make_shared<Options>();
  command
      ->add_option(
          "inputs", options->inputs,
          "FILE or NAME=FILE (.npy, .npz, .safetensors) with q, k, v, and as wanted dout, dlse, cu_seqlens_q, cu_seqlens_kv, block_table, "
          "seqlens_kv; every other tensor is a parameter that the score and the mask may read")
      ->required();
  command->add_option("-o,--output", options->output, "an .npz or .safetensors file, or a folder of .npy files")->required();
  command->add_option("--score", options->score, "the score, e.g. 'score + rel[head, clamp(kv_idx - q_idx, -8, 8) + 8]'");
  command->add_option("--mask", options->mask, "the mask, e.g. 'causal() & window(128)'");
  command->add_option("--sink", options->sink, "the parameter that is a logit per query head in the denominator");
  command->add_option("--grad", options->gradients, "parameters whose gradient is wanted, with commas between; default: every floating one")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--scale", options->scale, "of q . k; default: 1 / sqrt(head_dim)");
  CLI::Option* dropout = command->add_option("--dropout", options->dropout_p, "probability");
  command->add_option("--dropout-seed", options->rng.seed)->needs(dropout)->check(whole_number());
  command->add_option("--dropout-offset", options->rng.offset)->needs(dropout)->check(whole_number());
  command->add_flag("--reproducible", options->reproducible, "the same bits from run to run");
  command->add_flag("--checked", options->checked, "verify every index into a parameter");
  command->add_flag("-q,--quiet", options->quiet, "print nothing");
  add_plan_options(*command, options->plan);
  command->callback([options] { run(*options); });
}

}  // namespace foveal::cli
