// SPDX-License-Identifier: Apache-2.0
// A client without a server: canned answers, requests kept.
#ifndef HEADWISE_TESTS_CLIENT_FAKE_CLIENT_H_
#define HEADWISE_TESTS_CLIENT_FAKE_CLIENT_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/app.h"
#include "client/client.h"

namespace headwise::client {

// What the fake answers and what it was asked; outlives the client. Not thread-safe.
struct Script {
  absl::Status failure;  // if not OK, every call's answer
  v1::ForwardResponse forward;
  v1::AblateResult ablate;
  v1::AnalyzeHeadsResult analysis;
  v1::AuditResult audit;
  v1::LoadLayerResponse load;
  v1::PlanUploadResponse plan;
  v1::UnloadLayerResponse unload;
  v1::ListLayersResponse list;
  v1::LayerDetails details;
  v1::ListRepositoryResponse repository;
  v1::SaveLayerResponse save;
  std::vector<v1::DownloadLayerResponse> download;
  v1::ServerInfoResponse info;
  std::string health = "SERVING";

  std::string target;
  absl::Duration timeout;
  std::string client_id;
  v1::ForwardRequest forward_request;
  v1::AblateRequest ablate_request;
  v1::AnalyzeHeadsRequest analyze_request;
  v1::AuditRequest audit_request;
  v1::LoadLayerRequest load_request;
  v1::PlanUploadRequest plan_request;
  v1::UploadHeader upload_header;
  std::map<std::string, OwnedTensor> uploaded;
  v1::GetLayerRequest get_request;
  v1::DeriveLayerRequest derive_request;
  v1::SaveLayerRequest save_request;
  std::string unloaded, health_asked, downloaded;
  int calls = 0;
};

// A layer of D 4 with two heads of dk 2 and this dv, without tensors and counts.
v1::LayerDetails TwoHeadDetails(uint32_t dv);

// Runs `headwise WORDS…` against the script, with `input` on standard input if there is one.
struct Outcome {
  int exit_code = 0;
  std::string out, err;
};
Outcome RunWith(Script* script, const std::vector<std::string>& words,
                const Terminal& terminal = {},
                const std::optional<std::string>& input = std::nullopt);

}  // namespace headwise::client

#endif  // HEADWISE_TESTS_CLIENT_FAKE_CLIENT_H_
