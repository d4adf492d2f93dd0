// SPDX-License-Identifier: Apache-2.0
// Lists the layers of a server with the installed client. Usage: consumer HOST:PORT
#include <client/client.h>
#include <headwise/version.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto client = headwise::client::Client::Connect(argv[1]);
  if (!client.ok()) return 1;
  const auto layers = (*client)->ListLayers();
  if (!layers.ok()) {
    std::cerr << layers.status() << "\n";
    return 1;
  }
  std::cout << headwise::kVersion;
  for (const auto& layer : layers->layers()) std::cout << " " << layer.name();
  std::cout << "\n";
  return 0;
}
