// SPDX-License-Identifier: Apache-2.0
// One self-contained page with the figures of an answer: inline SVG, no script, nothing from the
// network, light and dark, wide and narrow screens. All functions are pure and thread-safe.
#ifndef HEADWISE_CLIENT_HTML_REPORT_H_
#define HEADWISE_CLIENT_HTML_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/html_weights.h"
#include "headwise/v1/ablation.pb.h"
#include "headwise/v1/analysis.pb.h"
#include "headwise/v1/headwise.pb.h"

namespace headwise::client {

// Bars of relative L2 with intervals; interactions as a matrix for pairs; the four curves of a
// prune plan.
std::string AblationPage(const v1::AblateResult& result);

// Statistics of heads with their intervals; CKA as a matrix in dendrogram order; weights of one
// sequence.
std::string AnalysisPage(const v1::AnalyzeHeadsResult& result, const WeightMaps& weights);

// The tensors of an answer, and weights of one sequence.
std::string ForwardPage(const v1::ForwardResponse& response, const WeightMaps& weights);

// Order of `n` items whose similarities are given [n, n]: leaves of an average-linkage dendrogram,
// so that like ones are neighbours.
std::vector<size_t> DendrogramOrder(const std::vector<double>& similarity, size_t n);

// Writes the page to `file`. PERMISSION_DENIED, NOT_FOUND, …: what the system says.
absl::Status WritePage(const std::string& file, const std::string& page);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_HTML_REPORT_H_
