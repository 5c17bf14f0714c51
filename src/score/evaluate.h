#pragma once
// Evaluates a program at one pair: the semantics of programs. Reals are doubles, integers have 64 bits.
#include <cstdint>

#include "score/program.h"

namespace foveal::scoring {

struct Point {
  double score = 0;
  std::int64_t batch = 0, head = 0, q_idx = 0, kv_idx = 0, seqlen_q = 0, seqlen_kv = 0;
};

class ParamReader {
 public:
  virtual ~ParamReader() = default;
  /// An element of ScoreProgram::params[param]; one index per dimension. Indices may be out of range: the reader clamps or throws.
  virtual double read(std::int32_t param, const std::int64_t* index) const = 0;
  /// The same for an integer or boolean parameter, exact beyond 2^53.
  virtual std::int64_t read_integer(std::int32_t param, const std::int64_t* index) const {
    return static_cast<std::int64_t>(read(param, index));
  }
};

/// `real` for values of type real, else `integer` (0 or 1 for booleans).
union Scalar {
  double real;
  std::int64_t integer;
};

/// f32: every real value is rounded to float, as in a kernel that computes in single precision.
enum class Precision : std::uint8_t { f64, f32 };

/// Fills values[0 .. program.code.size()) and returns the first output as a real. Allocates nothing.
double evaluate(const Program& program, const Point& point, const ParamReader& reader, Scalar* values,
                Precision precision = Precision::f64);

/// In fp64, with a relative error of `part` on the result of every inexact operation, its sign drawn from `bits`. The distance from
/// evaluate() shows how a program amplifies rounding errors of this size.
double evaluate_with_roundings(const Program& program, const Point& point, const ParamReader& reader, Scalar* values, double part,
                               std::uint64_t bits);

}  // namespace foveal::scoring
