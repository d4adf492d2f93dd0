// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_ENGINE_FIGURES_H_
#define HEADWISE_SERVER_ENGINE_FIGURES_H_

#include <prometheus/collectable.h>

#include <memory>

#include "core/engine.h"
#include "server/metrics.h"

namespace headwise {

// The engine's own counters, memory by kind and the CPU quota's throttling, read when they are
// asked for. `engine` must outlive it. Thread-safe.
std::unique_ptr<prometheus::Collectable> MakeEngineFigures(const Engine* engine,
                                                           Metrics::MemoryFigures memory,
                                                           Metrics::LiveCalls live_calls);

}  // namespace headwise

#endif  // HEADWISE_SERVER_ENGINE_FIGURES_H_
