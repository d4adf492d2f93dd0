// SPDX-License-Identifier: Apache-2.0
// The one table of bounds.
#include <algorithm>
#include <iterator>

#include "absl/log/check.h"
#include "tests/bench/bench.h"

namespace headwise::bench {
namespace {

constexpr Bound kBounds[] = {
    {"core_f32_t2048", "attention core, B1 T2048 H16 dk 64, share of peak", Direction::kAtLeast,
     0.88},
    {"core_f32_t512", "attention core, B8 T512 H12 dk 64, share of peak", Direction::kAtLeast,
     0.86},
    {"core_f32_t128", "attention core, B8 T128 H12 dk 64, share of peak", Direction::kAtLeast,
     0.78},
    {"core_bf16_t2048", "the same in bf16", Direction::kAtLeast, 0.78},
    {"core_bf16_t512", "the same in bf16", Direction::kAtLeast, 0.74},
    {"core_bf16_t128", "the same in bf16", Direction::kAtLeast, 0.64},
    {"window_over_visible", "time a visible pair, window 256 at T8192 / dense T2048",
     Direction::kAtMost, 1.25},
    {"decode_gbs_share", "bytes/s of k and v, T1 S4096 D4096 bf16, over a plain read",
     Direction::kAtLeast, 0.85},
    {"causal_over_dense_t2048", "time causal / dense, B1 T2048 H16", Direction::kAtMost, 0.58},
    {"projection_f32", "q, k, v of B8 T512 D768, time of oneDNN's matmul / ours",
     Direction::kAtLeast, 0.97},
    {"projection_bf16", "the same in bf16", Direction::kAtLeast, 0.97},
    {"projection_int8", "the same in int8, with quantising the rows", Direction::kAtLeast, 0.85},
    {"layer_f32", "whole layer B8 T512 D768 H12, share of peak", Direction::kAtLeast, 0.94},
    {"layer_bf16", "the same in bf16", Direction::kAtLeast, 0.90},
    {"layer_f32_t128", "whole layer B8 T128 D768 H12, share of peak", Direction::kAtLeast, 0.96},
    {"layer_bf16_t128", "the same in bf16", Direction::kAtLeast, 0.90},
    {"layer_int8_over_bf16", "time, projections in int8 / all in bf16, B8 T512 D768 H12",
     Direction::kAtMost, 0.75},
    {"layer_small", "whole layer B1 T10 D512 H8, share of peak", Direction::kAtLeast, 0.80},
    {"layer_small_bf16", "the same in bf16", Direction::kAtLeast, 0.50},
    {"leave_one_out_over_forward", "time, effects of all heads / one forward, B8 T512 D768 H12",
     Direction::kAtMost, 1.20},
    {"leave_one_out_over_forward_wide", "the same, B1 T512 D4096 H32", Direction::kAtMost, 1.40},
    {"pairs_over_forward",
     "time, effects of all 2,016 pairs with 2,000 resamples / one forward, B20 T500 D4096 H64",
     Direction::kAtMost, 1.5},
    {"ragged_over_equal", "time, lengths 16 to 512 / equal ones of the same work",
     Direction::kAtMost, 1.08},
    {"two_threads_speedup", "time, 1 thread / 2, B8 T512 D768 H12", Direction::kAtLeast, 1.88},
    {"rope_over_plain", "time, with RoPE / without, B8 T512 D768 H12", Direction::kAtMost, 1.10},
    {"alibi_over_plain", "time, with ALiBi / without", Direction::kAtMost, 1.10},
    {"softcap_over_plain", "time, with a soft-cap / without", Direction::kAtMost, 1.25},
    {"weights_over_plain", "time, p returned / not", Direction::kAtMost, 1.6},
    {"rpc_added_p50_ms", "p50 over gRPC less in process, idle server, B1 T10 D512",
     Direction::kAtMost, 0.25},
    {"server_cpu_over_compute", "server's CPU seconds a request / in process, B8 T128 D768",
     Direction::kAtMost, 1.2},
    {"forward_t16384_extra_bytes", "MiB at the peak of a forward over those of q, k, v, z and y",
     Direction::kAtMost, 64.0},
    {"faster_than_peers", "median over the shapes of our time / the best peer's",
     Direction::kAtMost, 0.88},
    {"faster_than_peers_", "our time / the best peer's", Direction::kAtMost, 1.0},
    {"rss_rounds", "resident after 200 rounds of load, forward, unload / after 5; full only",
     Direction::kAtMost, 1.05},
    {"batch_gain", "requests/s of 16 clients / of one, T1 D2048 H16", Direction::kAtLeast, 5.0},
};

}  // namespace

const Bound& FindBound(const std::string& name) {
  // Names that end in an underscore stand for all that begin so.
  const Bound* found =
      std::find_if(std::begin(kBounds), std::end(kBounds), [&](const Bound& bound) {
        const std::string known = bound.name;
        return name == known || (known.back() == '_' && name.rfind(known, 0) == 0);
      });
  CHECK(found != std::end(kBounds)) << name;
  return *found;
}

}  // namespace headwise::bench
