// Writes problem lines.
#include "problem/line.h"

#include <charconv>

#include "base/check.h"
#include "base/enum_name.h"
#include "problem/problem.h"

namespace foveal::problem {
namespace {

std::string number_text(double value) {
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return {text, error == std::errc{} ? end : text};
}

std::string pair_text(std::int64_t first, std::int64_t second) {
  return std::to_string(first) + (second == first ? "" : ":" + std::to_string(second));
}

std::string param_text(const ParamLine& line, DType problem) {
  std::string text = line.param.name() + ": " + to_string(line.param.type()) + base::shape_text(line.param.shape());
  if (line.dtype != default_dtype(line.param.type(), problem)) text += std::string(" ") + to_string(line.dtype);
  if (!line.fill.name.empty()) {
    text += " " + line.fill.name;
    std::string args;
    for (const double arg : line.fill.args) args += (args.empty() ? "" : ", ") + number_text(arg);
    if (!args.empty()) text += "(" + args + ")";
  }
  if (line.grad)
    text += line.grad_dtype == default_dtype(Type::real, problem) ? " grad" : std::string(" grad=") + to_string(line.grad_dtype);
  return text;
}

void write_varlen(const Line& l, std::string& text) {
  text += l.layout == Layout::bshd ? " layout=thd" : "";
  if (l.lengths.empty()) {
    text += " total=" + pair_text(l.total_q, l.paged() ? l.total_q : l.total_kv);
  } else {
    text += " lengths=";
    for (std::size_t i = 0; i < l.lengths.size(); ++i) text += (i > 0 ? "," : "") + pair_text(l.lengths[i].first, l.lengths[i].second);
  }
}

void write_paged(const Line& l, std::string& text) {
  text += " pages=" + std::to_string(l.page_size) + ":" + std::to_string(l.pages);
  if (l.varlen || l.lengths.empty()) return;
  for (std::size_t i = 0; i < l.lengths.size(); ++i) text += (i > 0 ? "," : " seqlens_kv=") + std::to_string(l.lengths[i].second);
}

void write_attention(const Line& l, std::string& text) {
  const Attention& a = l.attention;
  if (a.mask.present()) text += " mask=\"" + to_string(a.mask) + "\"";
  if (a.score_mod.present()) text += " score=\"" + to_string(a.score_mod) + "\"";
  for (const ParamLine& param : l.params) text += " param=\"" + param_text(param, l.dtype) + "\"";
  if (a.sink) text += " sink=" + a.sink->name();
  if (a.scale) text += " scale=" + number_text(*a.scale);
  if (a.dropout_p != 0) {
    text += " dropout=" + number_text(a.dropout_p);
    if (l.rng.seed != 0 || l.rng.offset != 0 || l.rng_in_memory) text += ":" + std::to_string(l.rng.seed);
    if (l.rng.offset != 0 || l.rng_in_memory) text += ":" + std::to_string(l.rng.offset);
    if (l.rng_in_memory) text += ":memory";
  }
  if (a.determinism != Determinism::fast) text += std::string(" determinism=") + to_string(a.determinism);
  if (a.backward != BackwardStrategy::automatic) text += std::string(" strategy=") + to_string(a.backward);
  if (a.checked) text += " checked";
  if (a.q_offset != 0) text += " q_offset=" + std::to_string(a.q_offset);
  if (a.kv_offset != 0) text += " kv_offset=" + std::to_string(a.kv_offset);
}

void write_outputs(const Line& l, std::string& text) {
  if (l.pass == Pass::forward) {
    if (!l.lse) text += " no_lse";
    return;
  }
  if (l.dlse) text += " dlse";
  if (l.dq && l.dk && l.dv) return;
  std::string grads;
  for (const auto& [wanted, name] : {std::pair{l.dq, "dq"}, std::pair{l.dk, "dk"}, std::pair{l.dv, "dv"}})
    if (wanted) grads += (grads.empty() ? "" : ",") + std::string(name);
  text += " grads=" + (grads.empty() ? "none" : grads);
}

void write_run(const Line& l, std::string& text) {
  if (l.seed != 0) text += " seed=" + std::to_string(l.seed);
  if (l.fill != Fill::normal) text += " inputs=adversarial";
  if (l.sample != 0) text += " sample=" + std::to_string(l.sample);
  if (l.device.kind == DeviceKind::cuda) text += " device=cuda" + (l.device.index == 0 ? "" : ":" + std::to_string(l.device.index));
  if (!l.options.backend.empty()) text += " backend=" + l.options.backend;
  if (!l.options.target.empty()) text += " target=" + l.options.target;
  if (l.options.threads != 0) text += " threads=" + std::to_string(l.options.threads);
}

}  // namespace

const char* to_string(Layout layout) { return base::enum_name(layout, {"bshd", "bhsd", "sbhd", "packed_qkv", "padded", "dim_first"}); }

const char* to_string(Fill fill) { return base::enum_name(fill, {"normal", "adversarial"}); }

std::string to_string(const Line& l) {
  std::string text = std::string(to_string(l.pass)) + " " + to_string(l.dtype) + " b" + std::to_string(l.batch) + " h" +
                     pair_text(l.heads_q, l.heads_kv) + " q" + pair_text(l.seqlen_q, l.seqlen_kv) + " d" +
                     pair_text(l.head_dim, l.head_dim_v);
  if (l.varlen) write_varlen(l, text);
  if (l.paged()) write_paged(l, text);
  if (l.cu_seqlens_dtype != DType::i32) text += std::string(" cu=") + to_string(l.cu_seqlens_dtype);
  if (l.layout != Layout::bshd) text += std::string(" layout=") + to_string(l.layout);
  for (std::size_t i = 0; i < l.strides.size(); ++i) {
    text += (i == 0 ? " strides=" : ";") + l.strides[i].first;
    for (std::size_t d = 0; d < l.strides[i].second.size(); ++d) text += (d == 0 ? ":" : ",") + std::to_string(l.strides[i].second[d]);
  }
  write_attention(l, text);
  write_outputs(l, text);
  write_run(l, text);
  return text;
}

std::string Problem::line() const { return to_string(line_of(*this)); }

}  // namespace foveal::problem
