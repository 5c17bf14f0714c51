#pragma once
// Evaluation of a program at one pair, in double: what the programs mean. Integers are exact up to 2^53, booleans are 0 and 1.
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
};

/// f32: every real value is rounded to float, as a kernel that computes in single precision rounds it.
enum class Precision : std::uint8_t { f64, f32 };

/// Fills values[0 .. program.code.size()) and returns the first output. Allocates nothing.
double evaluate(const Program& program, const Point& point, const ParamReader& reader, double* values,
                Precision precision = Precision::f64);

}  // namespace foveal::scoring
