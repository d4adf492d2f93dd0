// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "client/load/load_app.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  return headwise::client::RunHeadwiseLoad(words, headwise::client::DescribeTerminal(STDOUT_FILENO),
                                           isatty(STDERR_FILENO) == 1, std::cout, std::cerr);
}
