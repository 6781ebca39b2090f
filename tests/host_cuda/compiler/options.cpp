// NVRTC's options: what is taken over, ignored or refused.
#include <algorithm>
#include <set>
#include <stdexcept>

#include "build.h"

const std::vector<int> SUPPORTED_ARCHS = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

namespace {

// Without effect here, without and with a value.
const std::set<std::string> IGNORED = {"-G", "-lineinfo", "--generate-line-info", "-default-device", "--device-debug",
                                       "--device-as-default-execution-space", "-w"};
const std::set<std::string> IGNORED_WITH_VALUE = {"--fmad", "-fmad", "--maxrregcount", "-maxrregcount", "-prec-div",
                                                  "--prec-div", "-prec-sqrt", "--prec-sqrt"};

int arch_of(const std::string& value, bool& is_virtual) {
    const size_t underscore = value.find('_');
    const std::string kind = value.substr(0, underscore);
    std::string number = underscore == std::string::npos ? "" : value.substr(underscore + 1);
    if (!number.empty() && (number.back() == 'a' || number.back() == 'f')) number.pop_back();
    const bool is_number = !number.empty() && number.size() < 4 && std::all_of(number.begin(), number.end(), ::isdigit);
    if ((kind != "sm" && kind != "compute") || !is_number ||
        !std::count(SUPPORTED_ARCHS.begin(), SUPPORTED_ARCHS.end(), std::stoi(number)))
        throw std::invalid_argument("nvrtc: error: invalid value for --gpu-architecture (-arch)\n");
    is_virtual = kind == "compute";
    return std::stoi(number);
}

bool boolean(const std::string& name, const std::string& value) {
    if (value != "true" && value != "false")
        throw std::invalid_argument("nvrtc: error: invalid value for " + name + "\n");
    return value == "true";
}

}  // namespace

Options parse_options(const std::vector<std::string>& given) {
    Options options;
    for (size_t i = 0; i < given.size(); ++i) {
        const std::string& option = given[i];
        const size_t equals = option.find('=');
        const std::string name = option.substr(0, equals);
        const auto value = [&]() -> std::string {
            if (equals != std::string::npos) return option.substr(equals + 1);
            if (i + 1 == given.size()) throw std::invalid_argument("nvrtc: error: missing value for " + name + "\n");
            return given[++i];
        };
        const std::string letter = option.substr(0, 2);
        if (name == "--gpu-architecture" || name == "-arch") {
            options.arch = arch_of(value(), options.is_virtual_arch);
        } else if (name == "--std" || name == "-std") {
            const std::string standard = value();
            static const std::set<std::string> known = {"c++03", "c++11", "c++14", "c++17", "c++20"};
            if (!known.count(standard)) throw std::invalid_argument("nvrtc: error: invalid value for --std (-std)\n");
            // What comes before a program needs C++17, so older standards are not told apart.
            options.standard = standard == "c++20" ? "20" : "17";
        } else if (name == "--ftz" || name == "-ftz") {
            options.flushes_subnormals = boolean("--ftz (-ftz)", value());
        } else if (name == "--use_fast_math" || name == "-use_fast_math") {
            options.flushes_subnormals = true;
        } else if (name == "--include-path") {
            options.preprocessor.push_back("-I" + value());
        } else if (name == "--define-macro") {
            options.preprocessor.push_back("-D" + value());
        } else if (name == "--undefine-macro") {
            options.preprocessor.push_back("-U" + value());
        } else if (name == "--pre-include" || name == "-include") {
            options.preprocessor.push_back("-include");
            options.preprocessor.push_back(value());
        } else if (letter == "-I" || letter == "-D" || letter == "-U") {
            std::string text = option.substr(2);
            if (text.empty()) {
                if (i + 1 == given.size())
                    throw std::invalid_argument("nvrtc: error: missing value for " + name + "\n");
                text = given[++i];
            }
            options.preprocessor.push_back(letter + text);
        } else if (IGNORED_WITH_VALUE.count(name)) {
            value();
        } else if (!IGNORED.count(name)) {
            throw std::invalid_argument("nvrtc: error: unrecognized option " + option + " found\n");
        }
    }
    return options;
}
