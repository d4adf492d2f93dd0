// SPDX-License-Identifier: Apache-2.0
// What we need of OpenMP's standard interface. Debian's clang brings no omp.h of the runtime that
// oneDNN is linked with.
#ifndef HEADWISE_CORE_BASE_OPENMP_H_
#define HEADWISE_CORE_BASE_OPENMP_H_

extern "C" {
void omp_set_num_threads(int threads);
int omp_get_max_threads();
}

#endif  // HEADWISE_CORE_BASE_OPENMP_H_
