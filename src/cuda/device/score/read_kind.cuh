#pragma once
// Plain C++, included by host and device.

namespace foveal::device {

/// How the gradient of a trained read is reduced, in the order of scoring::Reduction.
enum ReadKind { kUniform, kRow, kColumn, kDiagonal, kElement, kScatter };

}  // namespace foveal::device
