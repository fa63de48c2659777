// .teamcity/settings.kts. The build agent has berth, OpenSSH and a kubeconfig. The step runs in a new VM, and not on the agent.
import jetbrains.buildServer.configs.kotlin.*
import jetbrains.buildServer.configs.kotlin.buildSteps.script

version = "2024.12"

project {
    buildType(Test)
}

object Test : BuildType({
    name = "Test"
    artifactRules = "report => report"
    vcs { root(DslContext.settingsRoot) }
    steps {
        script {
            scriptContent = """
                berth vm run --config ci-small --copy .:src --copy-out src/report:report -- sh -c 'cd src && make test'
            """.trimIndent()
        }
    }
    failureConditions { executionTimeoutMin = 60 }
})
