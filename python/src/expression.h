#pragma once
// Transformations and queries of whole expressions for the framework adapters.
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "foveal/score.h"

namespace foveal::python {

/// Equal for expressions built in the same way; much cheaper than canonical text. "" if absent.
std::string structure_of(const Expr& expr);

/// The expression for a batch that concatenates several batches of size `batch`, as vmap does: `batch` becomes its remainder. A parameter
/// in `folded` has one copy per batch: its new Param has a leading dimension for the copy, or, if its rank is unchanged, holds all copies
/// in its first dimension, whose index must be exactly `batch`.
Expr fold_batch(const Expr& expr, std::int64_t batch, const std::map<std::string, Param>& folded);

/// The names of the parameters that an expression reads.
std::set<std::string> params_of(const Expr& expr);
/// Those that a derivative leads to, be it zero: not what only conditions, indices or stopped gradients read.
std::set<std::string> differentiable_params(const Expr& expr);

/// For each dimension of a parameter: "batch" or "head" if every read in the expressions has exactly that symbol as its index there, else
/// "". Empty if the parameter is not read.
std::vector<std::string> index_symbols(const std::vector<Expr>& exprs, const std::string& param);

/// The expression for a shard of the batch and of the heads: `batch` and `head` become global, the local value plus the rank-0 integer
/// parameter in `origins` ("batch", "head"). Parameters in `shards` are sharded too, along the dimensions in which the new Param is
/// smaller; their index there must be exactly the symbol, and stays local.
Expr of_shard(const Expr& expr, const std::map<std::string, Param>& origins, const std::map<std::string, Param>& shards);

}  // namespace foveal::python
