// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/time/clock.h"
#include "server/codec_input.h"
#include "server/service.h"

namespace headwise {
namespace {

// Everything up to the queue. `call` is answered if this fails.
absl::StatusOr<ForwardRequest> Accept(const v1::ForwardRequest& request, const Startup& startup,
                                      UnaryCall* call) {
  absl::Status status = call->Admit();
  status.Update(call->ChooseRequestId(request.request_id()));
  status.Update(startup.Check(request.layer()));
  if (status.ok()) status = call->Hold(static_cast<int64_t>(request.ByteSizeLong()));
  if (!status.ok()) return status;
  absl::StatusOr<ForwardRequest> decoded = DecodeForward(request);
  if (decoded.ok()) decoded->context = call->request_context(request.priority());
  return decoded;
}

}  // namespace

grpc::ServerUnaryReactor* HeadwiseService::Forward(grpc::CallbackServerContext* context,
                                                   const v1::ForwardRequest* request,
                                                   v1::ForwardResponse* response) {
  auto* call = new UnaryCall(services_, context, "Forward", request->layer());
  absl::StatusOr<ForwardRequest> accepted = Accept(*request, startup_, call);
  if (!accepted.ok()) {
    call->Reply(accepted.status());
    return call;
  }
  services_.engine->Forward(*std::move(accepted), [call,
                                                   response](absl::StatusOr<ForwardResult> result) {
    call->FreeRequest();
    if (result.ok()) {
      const PassInfo pass = result->pass;
      const absl::Time begin = absl::Now();
      EncodeForward(*std::move(result), call->request_id(), response);
      call->SetAnswer(pass, absl::Now() - begin, static_cast<int64_t>(response->ByteSizeLong()));
    }
    call->Reply(result.status());
  });
  return call;
}

}  // namespace headwise
