#pragma once
// The usual masks and scores, each a few lines of Expr, and their name table (used by parse() and the command line).
#include <functional>
#include <string>
#include <vector>

#include "foveal/score.h"

namespace foveal {

FOVEAL_API Expr causal();                        ///< kv_idx <= q_idx: top-left aligned when the lengths differ
FOVEAL_API Expr causal_bottom_right();           ///< kv_idx <= q_idx + (seqlen_kv - seqlen_q)
FOVEAL_API Expr window(std::int64_t w);          ///< abs(q_idx - kv_idx) <= w; combine with causal() for a one-sided window
FOVEAL_API Expr prefix_lm(std::int64_t prefix);  ///< kv_idx < prefix | kv_idx <= q_idx
FOVEAL_API Expr document(const Param& ids);      ///< ids (S) or (B, S), integer: ids[q_idx] == ids[kv_idx]
FOVEAL_API Expr padding(const Param& lengths);   ///< lengths (B), integer: q_idx < lengths[batch] & kv_idx < lengths[batch]
FOVEAL_API Expr global_tokens(std::int64_t w, const Param& is_global);  ///< window(w) | is_global[q_idx] | is_global[kv_idx]
FOVEAL_API Expr dilated(std::int64_t w, std::int64_t d);                ///< window(w) and abs(q_idx - kv_idx) % d == 0

FOVEAL_API Expr alibi(std::int64_t heads);  ///< score + (kv_idx - q_idx) * 2^(-8 (head + 1) / heads)
FOVEAL_API Expr softcap(double cap);        ///< cap * tanh(score / cap)

/// One row of the table that parse() and the command line look names up in.
struct NamedExpr {
  std::string name;
  std::string signature;  ///< e.g. "window(w)"
  std::string summary;
  int integers;  ///< how many integer arguments it takes, before
  int params;    ///< how many parameters it takes
  std::function<Expr(const std::vector<double>& numbers, const std::vector<Param>& params)> build;
};
FOVEAL_API const std::vector<NamedExpr>& named_exprs();

}  // namespace foveal
