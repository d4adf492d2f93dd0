// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "tests/bench/bench.h"

namespace headwise::bench {
namespace {

using dnnl::memory;

constexpr memory::dim kM = 4096, kN = 2304, kK = 768;

}  // namespace

struct Peak::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul matmul;
  memory a, b, c;
};

// Weights in whatever layout oneDNN likes best (format any), threads by its own OpenMP team.
Peak::Peak(int threads) : state_(std::make_unique<State>()) {
  omp_set_num_threads(threads);
  const auto f32 = memory::data_type::f32;
  const auto plain = memory::format_tag::ab;
  const dnnl::matmul::primitive_desc desc(state_->engine, {{kM, kK}, f32, plain},
                                          {{kK, kN}, f32, memory::format_tag::any},
                                          {{kM, kN}, f32, plain});
  state_->matmul = dnnl::matmul(desc);
  state_->a = memory(desc.src_desc(), state_->engine);
  state_->b = memory(desc.weights_desc(), state_->engine);
  state_->c = memory(desc.dst_desc(), state_->engine);
  for (const memory& m : {state_->a, state_->b}) {
    float* data = static_cast<float*>(m.get_data_handle());
    for (size_t i = 0; i < m.get_desc().get_size() / sizeof(float); ++i) {
      data[i] = static_cast<float>(i % 17) * 0.1f - 0.8f;
    }
  }
}

Peak::~Peak() = default;

double Peak::Measure() {
  const double seconds = BestSeconds(0.1, [this] {
    state_->matmul.execute(
        state_->stream,
        {{DNNL_ARG_SRC, state_->a}, {DNNL_ARG_WEIGHTS, state_->b}, {DNNL_ARG_DST, state_->c}});
    state_->stream.wait();
  });
  return 2.0 * kM * kN * kK / seconds;
}

}  // namespace headwise::bench
