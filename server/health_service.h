// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_HEALTH_SERVICE_H_
#define HEADWISE_SERVER_HEALTH_SERVICE_H_

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/health.h"

namespace headwise {

// grpc.health.v1 over a HealthBoard, which must outlive it. An unknown name is NOT_FOUND to Check
// and SERVICE_UNKNOWN to Watch, which goes on and tells when the name appears. Thread-safe.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  explicit HealthService(HealthBoard* board) : board_(board) {}

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  HealthBoard* const board_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_HEALTH_SERVICE_H_
