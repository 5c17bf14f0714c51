#pragma once
// What the adapters ask of whole expressions.
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "foveal/score.h"

namespace foveal::python {

/// Equal for expressions that were built in the same way; much cheaper than the canonical text. "" for an absent one.
std::string structure_of(const Expr& expr);

/// The same expression for a batch that holds many batches of `batch` rows one after the other, as vmap makes it: `batch` becomes its
/// remainder. A parameter in `folded` has a copy for each of them: its new Param has a leading dimension for the copy, or, when its rank is
/// the old one, holds all copies' rows in its first dimension, which must be read with `batch` alone.
Expr fold_batch(const Expr& expr, std::int64_t batch, const std::map<std::string, Param>& folded);

/// The names of the parameters that an expression reads.
std::set<std::string> params_of(const Expr& expr);

/// True when every read of the parameter has the symbol `batch` as its first index.
bool reads_by_batch(const Expr& expr, const std::string& param);

}  // namespace foveal::python
