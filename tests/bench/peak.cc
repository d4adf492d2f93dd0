// SPDX-License-Identifier: Apache-2.0

#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "core/base/openmp.h"
#include "tests/bench/bench.h"

namespace headwise::bench {
namespace {

using dnnl::memory;

constexpr memory::dim kM = 4096, kN = 2304, kK = 768;

memory::data_type InputType(DType dtype) {
  return dtype == DType::kF32    ? memory::data_type::f32
         : dtype == DType::kBF16 ? memory::data_type::bf16
                                 : memory::data_type::u8;
}

memory::data_type WeightType(DType dtype) {
  return dtype == DType::kI8 ? memory::data_type::s8 : InputType(dtype);
}

memory::data_type ResultType(DType dtype) {
  return dtype == DType::kI8 ? memory::data_type::f32 : InputType(dtype);
}

// Some finite numbers of any type.
void Fill(const memory& m) {
  auto* bytes = static_cast<uint8_t*>(m.get_data_handle());
  const size_t size = m.get_desc().get_size();
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(i % 61);
}

}  // namespace

struct Matmul::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul matmul;
  memory a, b, c;
};

// Weights in whatever layout oneDNN likes best (format any).
Matmul::Matmul(DType dtype, int64_t m, int64_t n, int64_t k, int threads)
    : state_(std::make_unique<State>()) {
  omp_set_num_threads(threads);
  const auto plain = memory::format_tag::ab;
  const dnnl::matmul::primitive_desc desc(state_->engine, {{m, k}, InputType(dtype), plain},
                                          {{k, n}, WeightType(dtype), memory::format_tag::any},
                                          {{m, n}, ResultType(dtype), plain});
  state_->matmul = dnnl::matmul(desc);
  state_->a = memory(desc.src_desc(), state_->engine);
  state_->b = memory(desc.weights_desc(), state_->engine);
  state_->c = memory(desc.dst_desc(), state_->engine);
  Fill(state_->a);
  Fill(state_->b);
}

Matmul::~Matmul() = default;

void Matmul::Run() {
  state_->matmul.execute(
      state_->stream,
      {{DNNL_ARG_SRC, state_->a}, {DNNL_ARG_WEIGHTS, state_->b}, {DNNL_ARG_DST, state_->c}});
  state_->stream.wait();
}

Peak::Peak(DType dtype, int threads) : matmul_(dtype, kM, kN, kK, threads) {}

double Peak::Measure() {
  return 2.0 * kM * kN * kK / BestSeconds(0.08, [this] { matmul_.Run(); });
}

}  // namespace headwise::bench
