// SPDX-License-Identifier: Apache-2.0
// AnalyzeHeads requests and answers between the wire and core.
#ifndef HEADWISE_SERVER_CODEC_ANALYSIS_H_
#define HEADWISE_SERVER_CODEC_ANALYSIS_H_

#include "absl/status/statusor.h"
#include "core/analysis/analysis.h"
#include "core/request.h"
#include "headwise/v1/analysis.pb.h"

namespace headwise {

// The request's settings, with defaults filled in; token ids and directions are copied.
// INVALID_ARGUMENT for tensors that are malformed; what depends on the layer is CheckAnalysis's.
absl::StatusOr<AnalysisOptions> DecodeAnalysisOptions(const v1::AnalyzeHeadsRequest& request);

void EncodeAnalysis(const AnalysisResult& result, const PassInfo& pass,
                    v1::AnalyzeHeadsResult* wire);

}  // namespace headwise

#endif  // HEADWISE_SERVER_CODEC_ANALYSIS_H_
