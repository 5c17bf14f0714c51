#pragma once
// Common masks and scores, each a short Expr, and the table by which parse() and problem lines know them by name.
#include <functional>
#include <string>
#include <vector>

#include "foveal/score.h"

namespace foveal {

FOVEAL_API Expr causal();                        ///< kv_idx <= q_idx: aligned to the top left corner if the lengths differ
FOVEAL_API Expr causal_bottom_right();           ///< kv_idx <= q_idx + (seqlen_kv - seqlen_q): flash-attn's alignment
FOVEAL_API Expr window(std::int64_t w);          ///< abs(q_idx - kv_idx) <= w; combine with causal() for a one-sided window
FOVEAL_API Expr prefix_lm(std::int64_t prefix);  ///< kv_idx < prefix | kv_idx <= q_idx
FOVEAL_API Expr document(const Param& ids);      ///< ids: integer [seqlen] or [batch, seqlen]; ids[q_idx] == ids[kv_idx]
FOVEAL_API Expr padding(const Param& lengths);   ///< lengths: integer [batch]; q_idx < lengths[batch] & kv_idx < lengths[batch]
/// is_global: boolean or integer [seqlen]; window(w) | is_global[q_idx] | is_global[kv_idx] (Longformer, Beltagy et al. 2020)
FOVEAL_API Expr global_tokens(std::int64_t w, const Param& is_global);
FOVEAL_API Expr dilated(std::int64_t w, std::int64_t d);  ///< window(w) & abs(q_idx - kv_idx) % d == 0

FOVEAL_API Expr alibi(std::int64_t heads);  ///< score + (kv_idx - q_idx) * 2^(-8 (head + 1) / heads) (Press et al. 2022)
FOVEAL_API Expr softcap(double cap);        ///< cap * tanh(score / cap) (Gemma 2)

/// A mask or score that text can call by name.
struct NamedExpr {
  std::string name;
  std::string signature;  ///< "window(w)"
  std::string summary;
  int integers;  ///< number of constant arguments; they come first
  int params;    ///< number of parameter arguments
  std::function<Expr(const std::vector<double>& numbers, const std::vector<Param>& params)> build;
};
FOVEAL_API const std::vector<NamedExpr>& named_exprs();

}  // namespace foveal
