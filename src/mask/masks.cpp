// The functions of masks.h and their name table.
#include "foveal/masks.h"

#include <cmath>

#include "base/check.h"

namespace foveal {

using namespace symbols;

Expr causal() { return kv_idx <= q_idx; }

Expr causal_bottom_right() { return kv_idx <= q_idx + (seqlen_kv - seqlen_q); }

Expr window(std::int64_t w) {
  FOVEAL_CHECK(w >= 0, "window: w is ", w, "; expected 0 or more");
  return abs(q_idx - kv_idx) <= Expr(w);
}

Expr prefix_lm(std::int64_t prefix) {
  FOVEAL_CHECK(prefix >= 0, "prefix_lm: prefix is ", prefix, "; expected 0 or more");
  return (kv_idx < Expr(prefix)) | (kv_idx <= q_idx);
}

Expr document(const Param& ids) {
  FOVEAL_CHECK(ids.present() && ids.type() == Type::integer && (ids.shape().size() == 1 || ids.shape().size() == 2),
               "document: ids must be an integer Param of shape (seqlen) or (batch, seqlen)");
  return ids.shape().size() == 1 ? ids(q_idx) == ids(kv_idx) : ids(batch, q_idx) == ids(batch, kv_idx);
}

Expr padding(const Param& lengths) {
  FOVEAL_CHECK(lengths.present() && lengths.type() == Type::integer && lengths.shape().size() == 1,
               "padding: lengths must be an integer Param of shape (batch)");
  return (q_idx < lengths(batch)) & (kv_idx < lengths(batch));
}

Expr global_tokens(std::int64_t w, const Param& is_global) {
  FOVEAL_CHECK(is_global.present() && is_global.type() != Type::real && is_global.shape().size() == 1,
               "global_tokens: is_global must be a boolean or integer Param of shape (seqlen)");
  return window(w) | to_boolean(is_global(q_idx)) | to_boolean(is_global(kv_idx));
}

Expr dilated(std::int64_t w, std::int64_t d) {
  FOVEAL_CHECK(d >= 1, "dilated: d is ", d, "; expected 1 or more");
  return window(w) & (abs(q_idx - kv_idx) % Expr(d) == Expr(0));
}

Expr alibi(std::int64_t heads) {
  FOVEAL_CHECK(heads >= 1, "alibi: heads is ", heads, "; expected 1 or more");
  return score + (kv_idx - q_idx) * exp2((head + 1) * (-8.0 / static_cast<double>(heads)));
}

Expr softcap(double cap) {
  FOVEAL_CHECK(cap > 0 && std::isfinite(cap), "softcap: cap is ", cap, "; expected a positive number");
  return cap * tanh(score / cap);
}

namespace {

using Numbers = std::vector<double>;
using Params = std::vector<Param>;

std::int64_t whole(double value, const char* what) {
  FOVEAL_CHECK(value == std::trunc(value) && std::abs(value) <= 2147483647.0, what, " is ", value,
               "; expected an integer of at most 2147483647");
  return static_cast<std::int64_t>(value);
}

}  // namespace

const std::vector<NamedExpr>& named_exprs() {
  static const auto& table = *new std::vector<NamedExpr>{
      // never destroyed: destructors of static objects may parse
      {"causal", "causal()", "keys up to the query, aligned at the top left", 0, 0, [](const Numbers&, const Params&) { return causal(); }},
      {"causal_bottom_right", "causal_bottom_right()", "keys up to the query, the last query sees the last key", 0, 0,
       [](const Numbers&, const Params&) { return causal_bottom_right(); }},
      {"window", "window(w)", "keys at most w positions away", 1, 0,
       [](const Numbers& numbers, const Params&) { return window(whole(numbers[0], "window: w")); }},
      {"prefix_lm", "prefix_lm(prefix)", "the first keys for everybody, the others causal", 1, 0,
       [](const Numbers& numbers, const Params&) { return prefix_lm(whole(numbers[0], "prefix_lm: prefix")); }},
      {"document", "document(ids)", "keys of the query's own document", 0, 1,
       [](const Numbers&, const Params& params) { return document(params[0]); }},
      {"padding", "padding(lengths)", "queries and keys within the length of their batch row", 0, 1,
       [](const Numbers&, const Params& params) { return padding(params[0]); }},
      {"global_tokens", "global_tokens(w, is_global)", "a window, and tokens that see and are seen by all", 1, 1,
       [](const Numbers& numbers, const Params& params) { return global_tokens(whole(numbers[0], "global_tokens: w"), params[0]); }},
      {"dilated", "dilated(w, d)", "every d-th key of a window", 2, 0,
       [](const Numbers& numbers, const Params&) { return dilated(whole(numbers[0], "dilated: w"), whole(numbers[1], "dilated: d")); }},
      {"alibi", "alibi(heads)", "a score that falls linearly with distance, by head", 1, 0,
       [](const Numbers& numbers, const Params&) { return alibi(whole(numbers[0], "alibi: heads")); }},
      {"softcap", "softcap(cap)", "a score bounded to (-cap, cap)", 1, 0,
       [](const Numbers& numbers, const Params&) { return softcap(numbers[0]); }},
  };
  return table;
}

}  // namespace foveal
