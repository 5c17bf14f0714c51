#define FOVEAL_VECTOR_BYTES 32
#include "cpu/kernels/dropout_kernel.h"
#include "cpu/kernels/tape_kernel.h"

namespace foveal::cpu::targets {
const TapeKernels tape_avx2 = {run_tape<float>, run_tape<double>, drop_tile<float>, drop_tile<double>};
}
