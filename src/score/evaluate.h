#pragma once
// Evaluation of a program at one pair: what the programs mean. Reals are double, integers have 64 bits.
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
  /// The element at `index`, one per dimension, of ScoreProgram::params[param]. Indices may be out of range: the reader clamps or throws.
  virtual double read(std::int32_t param, const std::int64_t* index) const = 0;
  /// The same of an integer or boolean parameter: exact, too, where a double is not.
  virtual std::int64_t read_integer(std::int32_t param, const std::int64_t* index) const {
    return static_cast<std::int64_t>(read(param, index));
  }
};

/// One value: `real` where its type is real, else `integer`, 0 and 1 for booleans.
union Scalar {
  double real;
  std::int64_t integer;
};

/// f32: every real value is rounded to float, as a kernel that computes in single precision rounds it.
enum class Precision : std::uint8_t { f64, f32 };

/// Fills values[0 .. program.code.size()) and returns the first output as a real. Allocates nothing.
double evaluate(const Program& program, const Point& point, const ParamReader& reader, Scalar* values,
                Precision precision = Precision::f64);

/// In fp64, with the result of every operation that rounds off by this part of itself, up or down as the bits say: the distance from
/// evaluate() is what roundings of this size do to a program.
double evaluate_with_roundings(const Program& program, const Point& point, const ParamReader& reader, Scalar* values, double part,
                               std::uint64_t bits);

}  // namespace foveal::scoring
