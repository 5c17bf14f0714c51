#pragma once
// What the adapters ask of whole expressions.
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

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

/// For each dimension of a parameter "batch" or "head" where every read in the expressions has this symbol alone as its index there, else "".
/// Empty for one that is not read.
std::vector<std::string> index_symbols(const std::vector<Expr>& exprs, const std::string& param);

/// The same expression for a shard of a batch and its heads: `batch` and `head` become global ones, the local one plus what `origins` reads
/// ("batch" and "head" -> an integer parameter without dimensions). The parameters in `shards` hold their shard of some dimensions, which are the
/// shorter ones of the new Param: these must be read with the symbol alone, and stay so.
Expr of_shard(const Expr& expr, const std::map<std::string, Param>& origins, const std::map<std::string, Param>& shards);

}  // namespace foveal::python
